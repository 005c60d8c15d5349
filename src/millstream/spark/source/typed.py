"""Values with a schema as columns: JSON texts become Arrow arrays of the types that Spark asked for.

The check of a block decodes its values anyway. If a query needs only texts, numbers and booleans, their
columns are made of the decoded values. Other blocks whose values all fit are parsed by Arrow, column by
column, and only the fields that a query needs. Arrow knows no base64, no maps and no defaults of structs
and lists. Blocks with such fields, and blocks with a value that does not fit, are decoded value by value;
`tests/unit/spark/test_typed.py` shows all ways to be equal.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

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
    name_of,
)
from millstream.schema.validation import Validator, validator_of

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_MICROS_MAX = 2**63 - 1
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw] | None)
_DECIMAL = msgspec.json.Decoder(decimal.Decimal | None)
_NOT_DECODED = (
    ValueError,
    OverflowError,
    RecursionError,
    msgspec.DecodeError,
)


class TypedValues:
    """The values of some records: the structs of fitting records, and the numbers of misfits."""

    def __init__(self, column: pa.StructArray, misfits: list[int]) -> None:
        self.column = column
        self.misfits = misfits
        """The numbers of the records that are no value of the schema, ascending."""


def typed_values(
    values: Sequence[bytes | None], schema: StructType, kind: pa.StructType
) -> TypedValues:
    """Decode values; null, a tombstone, and a value that does not fit are null structs.

    Raises an error of Arrow if the columns were planned for another schema.
    """
    _check_planned(schema, kind)
    validator = validator_of(schema)
    if (checked := checked_values(validator, values, schema, kind)) is not None:
        return TypedValues(checked, [])
    fault = validator.fault(values)
    if fault is None and (parsed := parsed_values(values, schema, kind)) is not None:
        return TypedValues(parsed, [])
    misfits: list[int] = []
    rows: list[Any] = []
    for number, value in enumerate(values):
        row = None
        if value is not None:
            row = (
                None
                if fault is not None and not _fits(validator, value)
                else decoded_row(schema, value)
            )
            if row is None:
                misfits.append(number)
        rows.append(row)
    return TypedValues(pa.array(rows, kind), misfits)


def _check_planned(schema: AnyOf, kind: pa.DataType, path: str = "value") -> None:
    """Refuse columns of another type than the schema has now: Arrow would convert values or cut them.

    The schema may have changed since Spark asked for the types of the columns.
    """
    match schema:
        case StructType() if pa.types.is_struct(kind):
            types = {field.name: field.type for field in kind}
            for field in schema.fields:
                if field.name in types:
                    _check_planned(field.type, types[field.name], f"{path}.{field.name}")
        case ListType() if pa.types.is_list(kind):
            _check_planned(schema.items, kind.value_type, f"{path}[...]")
        case MapType() if pa.types.is_map(kind):
            _check_planned(schema.values, kind.item_type, f"{path}[...]")
        case _:
            if not _may_hold(schema, kind):
                raise pa.ArrowTypeError(f"{path} is {name_of(schema)} now, and not {kind}")


def _may_hold(schema: AnyOf, kind: pa.DataType) -> bool:
    """Return whether a column of a type holds scalars of a schema as they are.

    A column of 32 bits holds small numbers of 64 bits; Arrow refuses the others.
    """
    types = pa.types
    match schema:
        case BooleanType():
            return bool(types.is_boolean(kind))
        case IntegerType():
            return bool(types.is_integer(kind))
        case NumberType():
            return bool(types.is_float64(kind) or (schema.bits == 32 and types.is_float32(kind)))
        case BinaryType():
            return bool(types.is_binary(kind))
        case TimestampType():
            return bool(types.is_timestamp(kind))
        case DateType():
            return bool(types.is_date(kind))
        case DecimalType():
            return bool(types.is_decimal(kind))
        case EnumType() if not isinstance(schema.values[0], str):
            return bool(types.is_integer(kind))
        case StructType() | ListType() | MapType():
            return False
    return bool(types.is_string(kind))


def _fits(validator: Validator, value: bytes) -> bool:
    return validator.fault([value]) is None


def decoded_row(schema: StructType, value: bytes) -> dict[str, Any] | None:
    """Return the fields of a schema. Return None if Spark lacks a value for a field."""
    try:
        row: dict[str, Any] | None = _plain(schema, msgspec.Raw(value))
    except _NOT_DECODED:
        return None
    return row


def checked_values(
    validator: Validator, values: Sequence[bytes | None], schema: StructType, kind: pa.StructType
) -> pa.StructArray | None:
    """Make columns of the values as the check decodes them.

    None if a value does not fit, or if a field is no plain scalar.
    """
    numbers = _scalar_fields(schema, kind)
    if not numbers or (columns := validator.decoded(values, numbers)) is None:
        return None
    arrays = [
        _with_default(scalar_column(column, wanted.type), schema.fields[number])
        for column, wanted, number in zip(columns, kind, numbers, strict=True)
    ]
    missing = None
    if None in values:
        missing = scalar_column([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=missing)


def scalar_column(items: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return texts, numbers or booleans as an array; None is null.

    The array is made of buffers: `pa.array` imports pandas, which would double the start of a worker.
    """
    validity = None
    if None in items:
        validity = _bits([item is not None for item in items])
        filler = "" if pa.types.is_string(kind) else 0
        items = [filler if item is None else item for item in items]
    if pa.types.is_string(kind):
        text = "".join(items)
        data = text.encode()
        sizes = map(len, items if len(text) == len(data) else [item.encode() for item in items])
        ends = np.zeros(len(items) + 1, np.int32)
        np.cumsum(np.fromiter(sizes, np.int32, len(items)), out=ends[1:])
        buffers = [validity, pa.py_buffer(ends), pa.py_buffer(data)]
    elif pa.types.is_boolean(kind):
        buffers = [validity, _bits(items)]
    else:
        buffers = [validity, pa.py_buffer(np.array(items, kind.to_pandas_dtype()))]
    return pa.Array.from_buffers(kind, len(items), buffers)


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(flags, np.bool_), bitorder="little"))


def _scalar_fields(schema: StructType, kind: pa.StructType) -> list[int]:
    """Return the numbers of the wanted fields; nothing if one is no scalar that stays as it is decoded."""
    if _has_numeric_times(schema):  # one may be too late for Spark, whichever columns a query has
        return []
    numbers = {field.name: number for number, field in enumerate(schema.fields)}
    wanted = [numbers.get(field.name) for field in kind]
    are_scalars = all(
        number is not None
        and _has_simple_default(schema.fields[number])
        and _is_decoded(schema.fields[number].type, field.type)
        for number, field in zip(wanted, kind, strict=True)
    )
    return [number for number in wanted if number is not None] if are_scalars else []


def _is_decoded(schema: AnyOf, kind: pa.DataType) -> bool:
    """Return whether the check decodes a type to the value that Spark gets."""
    match schema:
        case TextType():
            return not schema.format
        case EnumType():
            return isinstance(schema.values[0], str)
        case NumberType():
            return schema.bits == 64
        case IntegerType():
            return schema.bits == 32 or bool(pa.types.is_int64(kind))
    return isinstance(schema, BooleanType)


def parsed_values(
    values: Sequence[bytes | None], schema: StructType, kind: pa.StructType
) -> pa.StructArray | None:
    """Let Arrow parse values that fit; None if it does not know a type or a notation of them."""
    if _has_numeric_times(schema):  # one may be too late for Spark, whichever columns a query has
        return None
    written = _written(schema, kind, top=True)
    present = [value for value in values if value is not None]
    if written is None or not present or not len(kind):
        return None
    text = b"\n".join(present)
    parse = arrow_json.ParseOptions(
        explicit_schema=pa.schema(written),
        newlines_in_values=text.count(b"\n") >= len(present),
        unexpected_field_behavior="ignore",
    )
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    try:
        table = arrow_json.read_json(io.BytesIO(text), read_options=read, parse_options=parse)
        if table.num_rows != len(present):
            return None
        column = pa.StructArray.from_arrays(
            [_finished(schema, field, table.column(field.name)) for field in kind],
            fields=list(kind),
        )
    except pa.ArrowInvalid:
        return None
    if len(present) == len(values):
        return column
    places = iter(range(len(present)))
    return column.take(
        pa.array([None if value is None else next(places) for value in values], pa.int64())
    )


def _finished(schema: StructType, wanted: pa.Field, column: pa.ChunkedArray) -> pa.Array:
    """Return a parsed field in the type of Spark, with its default where it was missing."""
    field = next(field for field in schema.fields if field.name == wanted.name)
    return _with_default(column.combine_chunks().cast(wanted.type), field)


def _with_default(array: pa.Array, field: SchemaField) -> pa.Array:
    """Return a column with its default in the place of nulls."""
    if field.default is None or not array.null_count:
        return array
    return array.fill_null(pa.scalar(field.default, array.type))


def _has_simple_default(field: SchemaField) -> bool:
    """Return whether null in a parsed field means that it was missing, and a scalar replaces it."""
    is_simple = isinstance(field.type, BooleanType | IntegerType | NumberType | TextType | EnumType)
    return field.default is None or (is_simple and not field.type.nullable)


def _has_numeric_times(schema: AnyOf) -> bool:
    match schema:
        case TimestampType():
            return schema.written != "text"
        case StructType():
            return any(_has_numeric_times(field.type) for field in schema.fields)
        case ListType():
            return _has_numeric_times(schema.items)
        case MapType():
            return _has_numeric_times(schema.values)
    return False


def _written(schema: AnyOf, kind: pa.DataType, *, top: bool = False) -> pa.DataType | None:
    """Return the type by which Arrow reads JSON of a type; return None if Arrow lacks the type."""
    match schema:
        case StructType():
            fields = {field.name: field for field in schema.fields}
            made = []
            for wanted in kind:
                field = fields.get(wanted.name)
                if field is None or not (
                    field.default is None or (top and _has_simple_default(field))
                ):
                    return None
                inner = _written(field.type, wanted.type)
                if inner is None:
                    return None
                made.append(pa.field(wanted.name, inner))
            return pa.struct(made)
        case ListType():
            items = _written(schema.items, kind.value_type)
            return None if items is None else pa.list_(pa.field("element", items))
        case BooleanType() | IntegerType() | TextType():
            return kind
        case NumberType():
            return kind
        case EnumType():
            return kind if isinstance(schema.values[0], str) else None
        case TimestampType(written="text") | DateType(written="text"):
            return pa.string()
    return None


def _plain(schema: AnyOf, text: msgspec.Raw) -> Any:
    """Return a JSON text that fits as the object that Arrow takes for its type.

    Fields that the schema does not name are not decoded: they may hold numbers that Python has not.
    """
    match schema:
        case StructType():
            fields = _FIELDS.decode(text)
            if fields is None:
                return None
            return {field.name: _field(field, fields) for field in schema.fields}
        case ListType():
            items = _ITEMS.decode(text)
            return items and [_plain(schema.items, item) for item in items]
        case MapType():
            entries = _FIELDS.decode(text)
            if entries is None:
                return None
            return [(name, _plain(schema.values, item)) for name, item in entries.items()]
        case AnyType():
            return _any_text(text)
        case DecimalType():
            return _DECIMAL.decode(text)
    value = msgspec.json.decode(text)
    return None if value is None else _scalar(schema, value)


def _any_text(text: msgspec.Raw) -> str | None:
    """Return a value of any type as JSON, as it was written if it holds a number too large."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return bytes(text).decode()
    return None if value is None else msgspec.json.encode(value).decode()


def _scalar(schema: AnyOf, value: Any) -> Any:
    match schema:
        case NumberType():
            return float(value)
        case BinaryType():
            return base64.b64decode(value)
        case TimestampType():
            return _micros(schema, value)
        case DateType():
            return datetime.date.fromisoformat(value) if schema.written == "text" else value
        case IntegerType():
            return int(value)
    return value


def _field(field: SchemaField, values: dict[str, msgspec.Raw]) -> Any:
    text = values.get(field.name)
    if text is None:
        text = msgspec.Raw(msgspec.json.encode(field.default))
    return _plain(field.type, text)


def _micros(schema: TimestampType, value: Any) -> int:
    if schema.written == "text":
        time = _time_decoder().decode(msgspec.json.encode(value))
        zoned = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
        return int((zoned - _EPOCH) // _MICROSECOND)
    micros = value * 1000 if schema.written == "ms" else value
    if not -_MICROS_MAX <= micros <= _MICROS_MAX:
        raise OverflowError
    return int(micros)


@lru_cache(maxsize=1)
def _time_decoder() -> msgspec.json.Decoder[datetime.datetime]:
    return msgspec.json.Decoder(datetime.datetime)


def texts_of_misfits(
    values: Sequence[bytes | None], misfits: Sequence[int], count: int
) -> pa.Array:
    """Return the text of each misfit, and null for fitting values."""
    texts: list[str | None] = [None] * count
    for number in misfits:
        texts[number] = (values[number] or b"").decode("utf-8", "replace")
    return pa.array(texts, pa.string())


def without(batch: pa.RecordBatch, misfits: Sequence[int]) -> pa.RecordBatch:
    """Return a batch without the records of these numbers."""
    if not misfits:
        return batch
    numbers = pa.array(range(batch.num_rows), pa.int64())
    return batch.filter(pc.invert(pc.is_in(numbers, value_set=pa.array(misfits, pa.int64()))))
