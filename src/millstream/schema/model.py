"""The model of schemas: one description of JSON values, whatever language a schema is written in.

Every source (a Python type, JSON Schema, Avro) becomes this model, and everything else is made from it:
the check of a record, the rules of evolution, JSON Schema, Avro and the columns of Spark. The model
describes values in JSON, so each type says how JSON writes the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any, Literal

from msgspec import Struct

from millstream.errors import InvalidInput, TooLarge
from millstream.format.packing import check_json

DEPTH_MAX = 32
"""Levels of a schema. Deeper values are hard to query, and readers of all kinds bound their recursion."""

TYPES_MAX = 2_000
"""Types in a schema: fields, items and values on all levels."""

NAME_CHARS_MAX = 255
"""Characters of the name of a field."""

TEXT_BYTES_MAX = 64 * 1024
"""Bytes of a schema as JSON, in the language of its source and as the store keeps it."""

INT_MAX = {32: 2**31 - 1, 64: 2**63 - 1}
"""The highest integer of each width; the lowest is one further from zero."""

DIGITS_MAX = 38
"""Digits of a decimal: as many as Spark, Parquet and Arrow hold in 128 bits."""


class Type(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """The base class of types."""

    nullable: bool = False
    """Whether null is a value."""


class BooleanType(Type, frozen=True, kw_only=True, tag="boolean"):
    """true or false."""


class IntegerType(Type, frozen=True, kw_only=True, tag="integer"):
    """A whole number that fits 32 or 64 bits."""

    bits: Literal[32, 64] = 64
    minimum: int | None = None
    maximum: int | None = None


class NumberType(Type, frozen=True, kw_only=True, tag="number"):
    """A floating point number; whole numbers are accepted."""

    bits: Literal[32, 64] = 64
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    """An exclusive minimum."""
    below: float | None = None
    """An exclusive maximum."""


class TextType(Type, frozen=True, kw_only=True, tag="text"):
    """Text, perhaps in a format."""

    format: Literal["", "uuid", "time", "duration"] = ""
    length_min: int | None = None
    length_max: int | None = None


class BinaryType(Type, frozen=True, kw_only=True, tag="binary"):
    """Bytes, as text in base64."""

    length_min: int | None = None
    length_max: int | None = None


class TimestampType(Type, frozen=True, kw_only=True, tag="timestamp"):
    """A time: text as in RFC 3339, or milliseconds or microseconds since the epoch."""

    written: Literal["text", "ms", "us"] = "text"
    zoned: bool | None = None
    """Whether a text must have a zone (True), or must have none (False)."""


class DateType(Type, frozen=True, kw_only=True, tag="date"):
    """A day: text such as 2026-05-04, or days since the epoch."""

    written: Literal["text", "days"] = "text"


class DecimalType(Type, frozen=True, kw_only=True, tag="decimal"):
    """A decimal number, as text or number."""

    precision: int = DIGITS_MAX
    scale: int = 18


class EnumType(Type, frozen=True, kw_only=True, tag="enum"):
    """One of several texts, or one of several whole numbers."""

    values: tuple[str | int, ...]


class ListType(Type, frozen=True, kw_only=True, tag="list"):
    """Items of one type, in order."""

    items: AnyOf
    length_min: int | None = None
    length_max: int | None = None


class MapType(Type, frozen=True, kw_only=True, tag="map"):
    """Values of one type by names that the schema does not know."""

    values: AnyOf


class SchemaField(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A field of a struct."""

    name: str
    type: AnyOf
    required: bool = True
    default: Any = None
    """The value for readers of records without the field, as JSON; only of a field that is not required."""
    doc: str = ""


class StructType(Type, frozen=True, kw_only=True, tag="struct"):
    """Fields with names."""

    fields: tuple[SchemaField, ...] = ()
    name: str = ""
    closed: bool = False
    """Whether fields that the schema does not name are refused."""


class AnyType(Type, frozen=True, kw_only=True, tag="any"):
    """Any JSON value, null included."""


AnyOf = (
    BooleanType
    | IntegerType
    | NumberType
    | TextType
    | BinaryType
    | TimestampType
    | DateType
    | DecimalType
    | EnumType
    | ListType
    | MapType
    | StructType
    | AnyType
)
"""A type of the model."""


def inner_types(schema: AnyOf) -> Iterator[tuple[str, AnyOf]]:
    """Yield the types directly inside a type, each with its step of a path."""
    if isinstance(schema, StructType):
        for field in schema.fields:
            yield f".{field.name}", field.type
    elif isinstance(schema, ListType):
        yield "[...]", schema.items
    elif isinstance(schema, MapType):
        yield "[...]", schema.values


class TypeCount:
    """The bounds of a conversion: it counts types while it makes them, since a type may be used often."""

    def __init__(self) -> None:
        self._count = 0

    def enter(self, path: str, depth: int) -> None:
        """Count a type; raise if it is one too many, or too deep."""
        self._count += 1
        if self._count > TYPES_MAX:
            raise too_many_types()
        if depth >= DEPTH_MAX:
            raise too_deep(path)


def too_many_types() -> TooLarge:
    """Return the error for a schema with too many types."""
    return TooLarge(
        f"the schema has more than {TYPES_MAX:,} types, counting fields, items and values; describe "
        "parts of it as any value",
        limit=TYPES_MAX,
        size=TYPES_MAX + 1,
    )


def too_deep(path: str) -> InvalidInput:
    """Return the error for a schema with too many levels."""
    return InvalidInput(
        f"the schema is deeper than {DEPTH_MAX} levels at {path[:100]}…; describe that part as any value",
        where=path,
    )


def check_schema(schema: AnyOf) -> AnyOf:
    """Return a schema that a log may have; raise for other schemas."""
    if not isinstance(schema, StructType) or schema.nullable:
        raise InvalidInput(
            f"the schema of a log describes an object with fields, not {name_of(schema)}; "
            "put the value into a field"
        )
    bounds = TypeCount()
    waiting: list[tuple[str, int, AnyOf]] = [("$", 0, schema)]
    while waiting:
        path, depth, inner = waiting.pop()
        bounds.enter(path, depth)
        _check_type(path, inner)
        waiting += [(path + step, depth + 1, each) for step, each in inner_types(inner)]
    return schema


def _check_type(path: str, schema: AnyOf) -> None:
    match schema:
        case StructType():
            _check_fields(path, schema)
        case EnumType():
            _check_values(path, schema)
        case DecimalType(precision=precision, scale=scale) if (
            not (type(precision) is type(scale) is int)
            or not 0 <= scale <= precision <= DIGITS_MAX
            or precision == 0
        ):
            raise InvalidInput(
                f"the decimal at {path} has a precision from 1 to {DIGITS_MAX} and a scale from 0 to the "
                f"precision, not {precision!r:.20} and {scale!r:.20}",
                where=path,
            )
        case IntegerType() if any(
            bound is not None and not -INT_MAX[64] - 1 <= bound <= INT_MAX[64]
            for bound in (schema.minimum, schema.maximum)
        ):
            raise InvalidInput(
                f"a bound of the integer at {path} needs more than 64 bits", where=path
            )
        case NumberType() if not all(
            isfinite(bound or 0.0)
            for bound in (schema.minimum, schema.maximum, schema.above, schema.below)
        ):
            raise InvalidInput(f"a bound of the number at {path} is not finite", where=path)
        case TextType() | BinaryType() | ListType() if any(
            length is not None and not 0 <= length <= INT_MAX[64]
            for length in (schema.length_min, schema.length_max)
        ):
            raise InvalidInput(f"a length at {path} is below 0 or above 64 bits", where=path)
        case _:
            pass


def _check_fields(path: str, schema: StructType) -> None:
    names = [field.name for field in schema.fields]
    for name in names:
        if not 1 <= len(name) <= NAME_CHARS_MAX or not _is_unicode(name):
            raise InvalidInput(
                f"the name of a field at {path} is 1 to {NAME_CHARS_MAX} characters of Unicode, not "
                f"{name!r:.100}",
                where=path,
            )
    for field in schema.fields:
        check_json(field.default, bytes_max=TEXT_BYTES_MAX)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"the schema names the field {twice!r} at {path} twice", where=path)


def _check_values(path: str, schema: EnumType) -> None:
    values = schema.values
    are_texts = all(isinstance(value, str) and _is_unicode(value) for value in values)
    are_numbers = all(type(value) is int and abs(value) <= INT_MAX[64] for value in values)
    if not values or not (are_texts or are_numbers) or len(set(values)) < len(values):
        raise InvalidInput(
            f"the enum at {path} has values that are all texts or all whole numbers of 64 bits, each "
            f"once, not {list(values)!r:.100}",
            where=path,
        )


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def name_of(schema: AnyOf) -> str:
    """Return a type in words, for messages."""
    match schema:
        case IntegerType() | NumberType() if schema.bits == 32:
            text = f"{_tag(schema)} of 32 bits"
        case TextType() if schema.format:
            text = f"{schema.format} text"
        case TimestampType() if schema.written != "text":
            text = f"timestamp in {schema.written}"
        case DateType() if schema.written != "text":
            text = f"date in {schema.written}"
        case DecimalType():
            text = f"decimal({schema.precision},{schema.scale})"
        case AnyType():
            text = "any value"
        case ListType():
            text = f"list of {name_of(schema.items)}"
        case MapType():
            text = f"map of {name_of(schema.values)}"
        case _:
            text = _tag(schema)
    return f"{text} or null" if schema.nullable else text


def _tag(schema: AnyOf) -> str:
    words = {StructType: "object", BinaryType: "text in base64"}
    return words.get(type(schema)) or str(type(schema).__struct_config__.tag)
