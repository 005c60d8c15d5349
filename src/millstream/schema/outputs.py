"""Schemas as JSON Schema (draft 2020-12) and as Avro (1.11)."""

from __future__ import annotations

import re
from typing import Any

from millstream.errors import InvalidInput
from millstream.schema.json_schema import OWN, UNZONED, ZONED, bytes_text
from millstream.schema.model import (
    AnyOf,
    AnyType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    EnumType,
    IntegerType,
    ListType,
    MapType,
    NumberType,
    SchemaField,
    StructType,
    TextType,
    TimestampType,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def json_schema_of(schema: StructType) -> dict[str, Any]:
    """Return a schema as JSON Schema."""
    return {"$schema": DIALECT, **_json_type(schema)}


def _json_type(schema: AnyOf) -> dict[str, Any]:
    made = _json_bare(schema)
    if not schema.nullable or isinstance(schema, AnyType):
        return made
    if isinstance(schema, EnumType):
        return {"enum": [*schema.values, None]}
    return {**made, "type": [made["type"], "null"]}


def _json_bare(schema: AnyOf) -> dict[str, Any]:
    match schema:
        case StructType():
            return _json_object(schema)
        case ListType():
            lengths = _given(minItems=schema.length_min, maxItems=schema.length_max)
            return {"type": "array", "items": _json_type(schema.items), **lengths}
        case MapType():
            return {"type": "object", "additionalProperties": _json_type(schema.values)}
        case BooleanType():
            return {"type": "boolean"}
        case IntegerType():
            bounds = _given(minimum=schema.minimum, maximum=schema.maximum)
            form = {"format": "int32"} if schema.bits == 32 else {}
            return {"type": "integer", **form, **bounds}
        case NumberType():
            form = {"format": "float"} if schema.bits == 32 else {}
            return {"type": "number", **form, **_json_bounds(schema)}
        case TextType():
            form = {"format": schema.format} if schema.format else {}
            lengths = _given(minLength=schema.length_min, maxLength=schema.length_max)
            return {"type": "string", **form, **lengths}
        case BinaryType(length_min=low, length_max=high):
            lengths = {} if low is None and high is None else {OWN: bytes_text(low, high)}
            return {"type": "string", "contentEncoding": "base64", **lengths}
        case TimestampType(written="text", zoned=zoned):
            zone = {} if zoned is None else {OWN: ZONED if zoned else UNZONED}
            return {"type": "string", "format": "date-time", **zone}
        case DateType(written="text"):
            return {"type": "string", "format": "date"}
        case TimestampType() | DateType():
            return {"type": "integer", OWN: f"{schema.__struct_config__.tag} {schema.written}"}
        case DecimalType():
            digits = {"precision": schema.precision, "scale": schema.scale}
            return {"type": "string", "format": "decimal", **digits}
        case EnumType():
            return {"enum": list(schema.values)}
        case AnyType():
            return {}


def _json_bounds(schema: NumberType) -> dict[str, Any]:
    return _given(
        minimum=schema.minimum,
        maximum=schema.maximum,
        exclusiveMinimum=schema.above,
        exclusiveMaximum=schema.below,
    )


def _json_object(schema: StructType) -> dict[str, Any]:
    properties = {field.name: _json_property(field) for field in schema.fields}
    required = [field.name for field in schema.fields if field.required]
    return {
        **({"title": schema.name} if schema.name else {}),
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        **({"additionalProperties": False} if schema.closed else {}),
    }


def _json_property(field: SchemaField) -> dict[str, Any]:
    default = {} if field.default is None else {"default": field.default}
    doc = {"description": field.doc} if field.doc else {}
    return {**_json_type(field.type), **default, **doc}


def _given(**facts: Any) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def avro_of(schema: StructType) -> dict[str, Any]:
    """Return a schema as an Avro schema; raise for names that Avro does not have."""
    made: dict[str, Any] = _AvroWriter().record(schema, "Record")
    return made


class _AvroWriter:
    """The conversion of one schema; every record and enum of Avro needs a name of its own."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def record(self, schema: StructType, name: str) -> dict[str, Any]:
        """Return a record with a name that no other type of the schema has."""
        record_name = self._name(schema.name if _AVRO_NAME.fullmatch(schema.name) else name)
        return {
            "type": "record",
            "name": record_name,
            "fields": [self._field(field, record_name) for field in schema.fields],
        }

    def _name(self, base: str) -> str:
        name, number = base, 2
        while name in self._names:
            name, number = f"{base}{number}", number + 1
        self._names.add(name)
        return name

    def _field(self, field: SchemaField, around: str) -> dict[str, Any]:
        if not _AVRO_NAME.fullmatch(field.name):
            raise InvalidInput(
                f"Avro has no field named {field.name!r:.100}: its names are letters, digits and _; use "
                "the JSON Schema",
                where=field.name,
            )
        made = self._type(field.type, f"{around}_{field.name}")
        doc = {"doc": field.doc} if field.doc else {}
        if field.required:
            return {"name": field.name, "type": made, **doc}
        default = field.default
        if default is None and not _has_null(made):
            made = ["null", made]
        elif default is not None and _has_null(made):
            made = [*(each for each in made if each != "null"), "null"]
        return {"name": field.name, "type": made, "default": default, **doc}

    def _type(self, schema: AnyOf, name: str) -> Any:
        made = self._bare(schema, name)
        return ["null", made] if schema.nullable and not _has_null(made) else made

    def _bare(self, schema: AnyOf, name: str) -> Any:
        match schema:
            case StructType():
                return self.record(schema, name)
            case ListType():
                return {"type": "array", "items": self._type(schema.items, name)}
            case MapType():
                return {"type": "map", "values": self._type(schema.values, name)}
            case EnumType() if all(
                isinstance(value, str) and _AVRO_NAME.fullmatch(value) for value in schema.values
            ):
                return {"type": "enum", "name": self._name(name), "symbols": list(schema.values)}
            case EnumType():
                return "string" if isinstance(schema.values[0], str) else "long"
            case _:
                return _avro_scalar(schema)


def _has_null(made: Any) -> bool:
    return isinstance(made, list) and "null" in made


def _avro_scalar(schema: AnyOf) -> Any:
    match schema:
        case BooleanType():
            return "boolean"
        case IntegerType():
            return "int" if schema.bits == 32 else "long"
        case NumberType():
            return "float" if schema.bits == 32 else "double"
        case BinaryType():
            return "bytes"
        case TextType(format="uuid"):
            return {"type": "string", "logicalType": "uuid"}
        case TimestampType(written="ms"):
            return {"type": "long", "logicalType": "timestamp-millis"}
        case TimestampType(written="us"):
            return {"type": "long", "logicalType": "timestamp-micros"}
        case DateType(written="days"):
            return {"type": "int", "logicalType": "date"}
        case DecimalType():
            digits = {"precision": schema.precision, "scale": schema.scale}
            return {"type": "bytes", "logicalType": "decimal", **digits}
        case _:  # texts in formats that Avro does not have, and any value as JSON
            return "string"
