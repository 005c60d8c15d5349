"""Python types as schemas: msgspec structs, dataclasses, TypedDicts, and the types of their fields."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import NODEFAULT, inspect

from millstream.errors import InvalidInput
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
    TypeCount,
)

_OBJECTS = (
    inspect.StructType,
    inspect.DataclassType,
    inspect.TypedDictType,
    inspect.NamedTupleType,
)

_LISTS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)


def schema_of_type(source: Any) -> AnyOf:
    """Return the schema of a type; its objects are written as JSON objects."""
    try:
        info = inspect.type_info(source)
    except (TypeError, ValueError, NameError, RecursionError) as error:
        raise InvalidInput(f"the type {source!r:.100} is no schema: {error}") from error
    return _Types().schema(info, "$", {}, ())


class _Types:
    """The conversion of a type; it knows the objects around each part."""

    def __init__(self) -> None:
        self._bounds = TypeCount()

    def schema(
        self, info: inspect.Type, path: str, extra: Mapping[str, Any], around: tuple[Any, ...]
    ) -> AnyOf:
        if isinstance(info, inspect.Metadata):
            return self.schema(info.type, path, info.extra_json_schema or {}, around)
        self._bounds.enter(path, len(around))
        if isinstance(info, inspect.UnionType):
            return self._union(info, path, extra, around)
        if isinstance(info, _OBJECTS):
            return self._object(info, path, around)
        if isinstance(info, _LISTS):
            items = self.schema(info.item_type, f"{path}[...]", {}, (*around, None))
            return ListType(items=items, length_min=info.min_length, length_max=info.max_length)
        if isinstance(info, inspect.DictType):
            return self._map(info, path, around)
        schema = _scalar(info, path, extra)
        if schema is None:
            raise InvalidInput(
                f"the field at {path} has a type without a schema, {_words(info)}; use a number, text, "
                "bytes, a time, a date, a Decimal, an enum, a list, a dict, an object, or Any",
                where=path,
            )
        return schema

    def _union(
        self,
        info: inspect.UnionType,
        path: str,
        extra: Mapping[str, Any],
        around: tuple[Any, ...],
    ) -> AnyOf:
        non_null = [each for each in info.types if not isinstance(each, inspect.NoneType)]
        if {type(each) for each in non_null} == {inspect.IntType, inspect.FloatType}:
            non_null = [each for each in non_null if isinstance(each, inspect.FloatType)]
        if len(non_null) != 1:
            raise InvalidInput(
                f"the field at {path} is a union of {len(non_null)} types; a schema has unions with None "
                "alone: use one type, or Any",
                where=path,
            )
        schema = self.schema(non_null[0], path, extra, around)
        if len(non_null) == len(info.types) or isinstance(schema, AnyType):
            return schema
        if isinstance(non_null[0], inspect.FloatType) and not info.includes_none:
            return schema
        return msgspec.structs.replace(schema, nullable=True)

    def _object(self, info: Any, path: str, around: tuple[Any, ...]) -> StructType:
        if info.cls in around:
            raise InvalidInput(
                f"the type {info.cls.__name__} contains itself, at {path}; use Any for that field",
                where=path,
            )
        if isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False):
            raise InvalidInput(
                f"the type {info.cls.__name__} at {path} is written as a JSON array; a schema needs "
                "objects with named fields: leave out array_like",
                where=path,
            )
        inside = (*around, info.cls)
        fields = [self._field(each, path, inside) for each in info.fields]
        if (tag_field := getattr(info, "tag_field", None)) is not None:
            fields.insert(0, SchemaField(name=tag_field, type=EnumType(values=(info.tag,))))
        closed = bool(getattr(info, "forbid_unknown_fields", False))
        return StructType(fields=tuple(fields), name=info.cls.__name__, closed=closed)

    def _field(self, field: inspect.Field, path: str, around: tuple[Any, ...]) -> SchemaField:
        name = field.encode_name
        schema = self.schema(field.type, f"{path}.{name}", {}, around)
        if field.required:
            return SchemaField(name=name, type=schema)
        return SchemaField(name=name, type=schema, required=False, default=_default(field))

    def _map(self, info: inspect.DictType, path: str, around: tuple[Any, ...]) -> AnyOf:
        key = info.key_type
        if not isinstance(key, inspect.StrType | inspect.AnyType):
            raise InvalidInput(
                f"the dict at {path} has keys of {_words(key)}; JSON has text alone", where=path
            )
        values = self.schema(info.value_type, f"{path}[...]", {}, (*around, None))
        return MapType(values=values)


def _scalar(info: inspect.Type, path: str, extra: Mapping[str, Any]) -> AnyOf | None:
    match info:
        case inspect.AnyType() | inspect.RawType():
            return AnyType()
        case inspect.BoolType():
            return BooleanType()
        case inspect.IntType():
            _no_multiple(info.multiple_of, path)
            low = info.ge if info.gt is None else info.gt + 1
            high = info.le if info.lt is None else info.lt - 1
            return IntegerType(minimum=low, maximum=high)
        case inspect.FloatType():
            _no_multiple(info.multiple_of, path)
            return NumberType(minimum=info.ge, maximum=info.le, above=info.gt, below=info.lt)
        case inspect.StrType():
            if info.pattern is not None:
                raise no_pattern(path)
            return TextType(length_min=info.min_length, length_max=info.max_length)
        case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
            return BinaryType(length_min=info.min_length, length_max=info.max_length)
        case inspect.DateTimeType():
            return TimestampType(zoned=info.tz)
        case inspect.DateType():
            return DateType()
        case inspect.TimeType():
            return TextType(format="time")
        case inspect.TimeDeltaType():
            return TextType(format="duration")
        case inspect.UUIDType():
            return TextType(format="uuid")
        case inspect.DecimalType():
            digits = {key: extra[key] for key in ("precision", "scale") if key in extra}
            return DecimalType(**digits)
        case inspect.EnumType():
            return EnumType(values=tuple(member.value for member in info.cls))
        case inspect.LiteralType():
            return _literal(info)
        case _:
            return None


def _literal(info: inspect.LiteralType) -> EnumType:
    values: Any = tuple(value for value in info.values if value is not None)
    return EnumType(values=values, nullable=None in info.values)


def _no_multiple(multiple_of: float | None, path: str) -> None:
    if multiple_of is not None:
        raise InvalidInput(
            f"the number at {path} has multiple_of, which no schema has; leave it out", where=path
        )


def no_pattern(path: str) -> InvalidInput:
    """Return the error for a pattern: a search may take longer than any bound."""
    return InvalidInput(
        f"the text at {path} has a pattern, which schemas leave out, since a search may take "
        "without end; leave the pattern out",
        where=path,
    )


def _default(field: inspect.Field) -> Any:
    """Return the default of a field as JSON; None if a function makes the default."""
    value = field.default
    if value is NODEFAULT:
        factory = field.default_factory
        if factory not in (list, dict, set, frozenset, tuple):
            return None
        value = factory()
    if value is msgspec.UNSET:
        return None
    try:  # the store keeps JSON: a tuple is a list there
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_encoded))
    except (TypeError, ValueError, RecursionError, OverflowError):
        return None


def _encoded(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(type(value).__name__)


def _words(info: inspect.Type) -> str:
    cls = getattr(info, "cls", None)
    return cls.__name__ if cls is not None else type(info).__name__.removesuffix("Type").lower()
