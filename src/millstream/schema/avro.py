"""Avro schemas (the JSON of their specification, 1.11) as a source and as an output.

Records in a log are JSON, whatever language their schema is written in. So a schema in Avro describes
fields and types; bytes are text in base64, and a union with null is the value itself or null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from millstream.errors import InvalidInput
from millstream.schema.model import (
    AnyOf,
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
    TypeCount,
)

_PRIMITIVES: dict[str, Callable[[], AnyOf]] = {
    "boolean": BooleanType,
    "int": lambda: IntegerType(bits=32),
    "long": IntegerType,
    "float": lambda: NumberType(bits=32),
    "double": NumberType,
    "bytes": BinaryType,
    "string": TextType,
}

_LOGICAL: dict[tuple[str, str], Callable[[], AnyOf]] = {
    ("string", "uuid"): lambda: TextType(format="uuid"),
    ("int", "date"): lambda: DateType(written="days"),
    ("long", "timestamp-millis"): lambda: TimestampType(written="ms"),
    ("long", "timestamp-micros"): lambda: TimestampType(written="us"),
    ("long", "local-timestamp-millis"): lambda: TimestampType(written="ms"),
    ("long", "local-timestamp-micros"): lambda: TimestampType(written="us"),
}

NAMED = ("record", "error", "enum", "fixed")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def from_avro(document: Any) -> AnyOf:
    """Return the schema that an Avro schema describes."""
    return AvroReader().schema(document, "$", 0, "")


class AvroReader:
    """The conversion of one document, which knows the types that were named before."""

    def __init__(self) -> None:
        self._bounds = TypeCount()
        self._named: dict[str, AnyOf | None] = {}
        """None marks a type whose definition is not complete."""

    def schema(self, node: Any, path: str, depth: int, space: str) -> AnyOf:
        """Return the type that a node describes; `space` is the namespace around it."""
        self._bounds.enter(path, depth)
        if isinstance(node, list):
            return self._union(node, path, depth, space)
        if isinstance(node, str):
            return self._by_name(node, path, space)
        if not isinstance(node, Mapping) or "type" not in node:
            raise InvalidInput(
                f"an Avro type at {path} is a name, a list, or an object with a type, not "
                f"{node!r:.100}",
                where=path,
            )
        kind = node["type"]
        if isinstance(kind, Mapping | list):
            return self.schema(kind, path, depth + 1, space)
        if kind in NAMED:
            return self._define(node, path, depth, space)
        if kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            if key not in node:
                raise InvalidInput(f"the {kind} at {path} has no {key}", where=path)
            inner = self.schema(node[key], f"{path}[...]", depth + 1, space)
            return ListType(items=inner) if kind == "array" else MapType(values=inner)
        logical = node.get("logicalType")
        if logical == "decimal" and kind == "bytes":
            return _decimal(node, path)
        if isinstance(kind, str) and (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, str(logical)]()
        return self._by_name(kind, path, space)

    def _by_name(self, name: Any, path: str, space: str) -> AnyOf:
        if isinstance(name, str) and name in _PRIMITIVES:
            return _PRIMITIVES[name]()
        if name == "null":
            raise InvalidInput(
                f"the Avro type at {path} is null alone; use a union with another type", where=path
            )
        full = _full_name(name, space) if isinstance(name, str) else ""
        for full_name in (full, name):
            if isinstance(full_name, str) and full_name in self._named:
                schema = self._named[full_name]
                if schema is None:
                    raise InvalidInput(
                        f"the Avro type {name!r} contains itself, at {path}; no column has such a type",
                        where=path,
                    )
                self._count(schema, path)
                return schema
        raise InvalidInput(
            f"the Avro type {name!r:.100} at {path} is not known; it is a primitive type, or the name "
            "of a type that the schema defines before",
            where=path,
        )

    def _count(self, schema: AnyOf, path: str) -> None:
        """Count the fields of a type that is used again."""
        if isinstance(schema, StructType):
            for field in schema.fields:
                self._bounds.enter(path, 0)
                self._count(field.type, path)

    def _union(self, node: list[Any], path: str, depth: int, space: str) -> AnyOf:
        non_null = [each for each in node if each != "null" and each != {"type": "null"}]
        if len(non_null) != 1:
            raise InvalidInput(
                f"the Avro union at {path} has {len(non_null)} types beside null; a schema has unions of "
                "one type with null alone",
                where=path,
            )
        schema = self.schema(non_null[0], path, depth + 1, space)
        return schema if len(non_null) == len(node) else replace(schema, nullable=True)

    def _define(self, node: Mapping[str, Any], path: str, depth: int, space: str) -> AnyOf:
        name = node.get("name")
        if not isinstance(name, str) or not all(map(_NAME.fullmatch, name.split("."))):
            raise InvalidInput(
                f"the Avro {node['type']} at {path} needs a name of letters, digits and _, not "
                f"{name!r:.100}",
                where=path,
            )
        space = node.get("namespace", space) if "." not in name else name.rpartition(".")[0]
        full = _full_name(name, space if isinstance(space, str) else "")
        if full in self._named:
            raise InvalidInput(
                f"the Avro type {full!r:.100} at {path} is defined twice", where=path
            )
        self._named[full] = None
        schema = self._definition(node, path, depth, space)
        self._named[full] = schema
        return schema

    def _definition(self, node: Mapping[str, Any], path: str, depth: int, space: str) -> AnyOf:
        if node["type"] == "enum":
            symbols = node.get("symbols")
            if not isinstance(symbols, list) or not symbols:
                raise InvalidInput(f"the Avro enum at {path} has a list of symbols", where=path)
            return EnumType(values=tuple(symbols))
        if node["type"] == "fixed":
            size = node.get("size")
            if type(size) is not int or size < 0:
                raise InvalidInput(f"the Avro fixed at {path} has a size from 0", where=path)
            if node.get("logicalType") == "decimal":
                return _decimal(node, path)
            return BinaryType(length_min=size, length_max=size)
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise InvalidInput(f"the Avro record at {path} has a list of fields", where=path)
        made = tuple(self._field(each, path, depth, space) for each in fields)
        return StructType(fields=made, name=str(node["name"]).rpartition(".")[2])

    def _field(self, node: Any, path: str, depth: int, space: str) -> SchemaField:
        name = node.get("name") if isinstance(node, Mapping) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name) or "type" not in node:
            raise InvalidInput(
                f"a field of the Avro record at {path} has a type, and a name of letters, digits and _, "
                f"not {node!r:.100}",
                where=path,
            )
        schema = self.schema(node["type"], f"{path}.{name}", depth + 1, space)
        doc = node.get("doc", "")
        return SchemaField(
            name=name,
            type=schema,
            required="default" not in node,
            default=node.get("default"),
            doc=doc if isinstance(doc, str) else "",
        )


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _decimal(node: Mapping[str, Any], path: str) -> DecimalType:
    precision, scale = node.get("precision"), node.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        raise InvalidInput(f"the Avro decimal at {path} has a precision and a scale", where=path)
    return DecimalType(precision=precision, scale=scale)
