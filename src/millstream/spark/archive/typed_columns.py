"""Typed columns: the fields of a log's schema as columns of Parquet files and tables.

Numbers are 64 bits wide, so that a schema whose numbers widen keeps its columns. A field whose name is
taken by a column of all logs, or differs from another name in upper and lower case alone, gets the
prefix `value_`. Fields without a form in Parquet, such as a struct without fields, have no column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.schema import model
from millstream.spark.source.typed import texts_of_misfits, typed_values

CORRUPT = "_corrupt"
"""The column with the text of each value that does not fit the schema."""

TAKEN = (
    *("key", "value", "topic", "partition", "offset", "timestamp", "appendTimestamp", "headers"),
    *("log", "date", CORRUPT),
)
"""Columns of archives and tables that do not depend on a schema."""

_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class TypedColumns:
    """The columns of the values of a schema."""

    schema: model.StructType
    kind: pa.StructType
    """The decoded fields, by their names in the schema."""
    names: tuple[str, ...]
    """The name of each field's column."""
    have_all_fields: bool
    """Whether no field of the schema, at any level, lacks a form in Parquet."""

    def fields(self) -> list[pa.Field]:
        """Return the columns, and last the column of values that do not fit."""
        typed = [
            pa.field(name, field.type) for name, field in zip(self.names, self.kind, strict=True)
        ]
        return [*typed, pa.field(CORRUPT, pa.string())]

    def added_to(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the columns of their values, which are bytes in the column `value`."""
        values = rows.column("value").to_pylist()
        if len(self.kind):
            typed = typed_values(values, self.schema, self.kind)
            columns, misfits = typed.column.flatten(), typed.misfits
        else:
            columns, misfits = [], []
        columns = [*columns, texts_of_misfits(values, misfits, rows.num_rows)]
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *columns], schema=pa.schema([*rows.schema, *self.fields()])
        )


def typed_columns(schema: model.StructType) -> TypedColumns:
    """Return the columns of a schema."""
    kinds = [(field.name, column_type(field.type)) for field in schema.fields]
    stored = [pa.field(name, kind) for name, kind in kinds if kind is not None]
    names_used = {name.lower() for name in TAKEN}
    names = []
    for field in stored:
        name = field.name
        while name.lower() in names_used:
            name = f"value_{name}"
        names_used.add(name.lower())
        names.append(name)
    return TypedColumns(schema, pa.struct(stored), tuple(names), _has_form(schema))


def _has_form(schema: model.AnyOf) -> bool:
    """Return whether a type and all types inside it have a form in Parquet."""
    inner = model.inner_types(schema)
    return column_type(schema) is not None and all(_has_form(kind) for _, kind in inner)


def column_type(schema: model.AnyOf) -> pa.DataType | None:
    """Return the type of a column; None if Parquet has no form of the type."""
    match schema:
        case model.StructType():
            kinds = [(field.name, column_type(field.type)) for field in schema.fields]
            stored = [pa.field(name, kind) for name, kind in kinds if kind is not None]
            return pa.struct(stored) if stored else None
        case model.ListType():
            items = column_type(schema.items)
            return None if items is None else pa.list_(pa.field("element", items))
        case model.MapType():
            values = column_type(schema.values)
            return None if values is None else pa.map_(pa.string(), values)
        case model.BooleanType():
            return pa.bool_()
        case model.IntegerType():
            return pa.int64()
        case model.NumberType():
            return pa.float64()
        case model.BinaryType():
            return pa.binary()
        case model.TimestampType():
            return _TIME
        case model.DateType():
            return pa.date32()
        case model.DecimalType():
            return pa.decimal128(schema.precision, schema.scale)
        case model.EnumType() if not isinstance(schema.values[0], str):
            return pa.int64()
    return pa.string()


def union(schemas: Iterable[Sequence[pa.Field] | pa.Schema]) -> pa.Schema:
    """Return all columns of schemas, in the order in which they come; types must agree.

    Structs are joined field by field.
    """
    merged: dict[str, pa.Field] = {}
    for schema in schemas:
        for field in schema:
            present = merged.get(field.name)
            if present is None:
                merged[field.name] = pa.field(field.name, plain(field.type))
            else:
                kind = _joined(field.name, present.type, plain(field.type))
                merged[field.name] = pa.field(field.name, kind)
    return pa.schema(list(merged.values()))


def _joined(name: str, old: pa.DataType, new: pa.DataType) -> pa.DataType:
    if old == new:
        return old
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return pa.struct(list(union([list(old), list(new)])))
    if pa.types.is_list(old) and pa.types.is_list(new):
        return pa.list_(pa.field("element", _joined(name, old.value_type, new.value_type)))
    if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type == new.key_type:
        return pa.map_(old.key_type, _joined(name, old.item_type, new.item_type))
    raise InvalidInput(
        f"column {name!r} has the type {old} already, and a schema makes it {new}; write to "
        "another path, or without typed columns"
    )


def plain(kind: pa.DataType) -> pa.DataType:
    """Return a type as we write it: libraries name items and texts in several ways."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return _TIME
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    return kind


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with exactly the columns of a schema; a missing column becomes null."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
