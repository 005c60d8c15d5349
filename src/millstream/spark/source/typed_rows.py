"""Rows of logs with a schema: which columns values have, and how a task makes them.

Logs whose newest schemas are equal have the column `value` as a struct, or with the option `columns` a
column for each field. A record that does not fit is reported, left out or an error, by the option `mode`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as spark

from millstream.errors import InvalidInput, MillstreamError
from millstream.log import commands as c
from millstream.schema import model
from millstream.spark.place import reading
from millstream.spark.source.planning import NAMED_MAX, find_logs
from millstream.spark.source.typed import texts_of_misfits, typed_values, without

if TYPE_CHECKING:
    from millstream.command import Session
    from millstream.spark.options import ReadOptions

PLAIN = ("key", "topic", "partition", "offset", "timestamp", "appendTimestamp", "headers")
"""The columns that have nothing to do with values."""


def value_fields(options: ReadOptions) -> spark.StructType | None:
    """Return the fields of the values of a read, or None if the values are bytes.

    Whatever keeps a store from being asked is left to the planning of the read, which says it.
    """
    may_be_typed = options.values and not (options.raw_values or options.queue or options.archive)
    must_be_typed = options.columns or options.mode != "PERMISSIVE"
    has_many = options.pattern or len(options.logs) > NAMED_MAX
    if not may_be_typed or (has_many and not must_be_typed):
        return None
    try:
        with reading(options.place) as session:
            names = list(find_logs(session, options)) if options.pattern else options.logs
            schemas = [newest_schema(session, name) for name in names]
    except MillstreamError:
        return None
    first = schemas[0] if schemas else None
    if first is None or any(schema != first for schema in schemas):
        if must_be_typed:
            shown = ", ".join(names[:10]) + ("" if len(names) <= 10 else ", …")
            raise InvalidInput(
                f"option {'columns' if options.columns else 'mode'}: expected logs with one and the "
                f"same schema, and {shown or 'none'} have not; read them without it"
            )
        return None
    if options.corrupt_column in (*PLAIN, "value"):
        raise InvalidInput(
            f"option columnNameOfCorruptRecord: {options.corrupt_column!r} is a column of all logs; "
            "choose another name"
        )
    fields = spark_struct(first)
    taken = {name.lower() for name in (*PLAIN, options.corrupt_column)}
    both = [name for name in fields.names if name.lower() in taken]  # as Spark compares names
    if options.columns and both:
        raise InvalidInput(
            f"option columns: the field {both[0]!r} has the name of a column of all logs; read the "
            "column value without this option"
        )
    return fields


def newest_schema(session: Session, log: str) -> model.StructType | None:
    """Return the newest schema of a log, or None."""
    versions = session.execute(c.GetSchemas(log))
    return versions[-1].schema if versions else None


def spark_struct(schema: model.StructType) -> spark.StructType:
    """Return a schema as a struct of Spark; every field may be null, because a value may not fit."""
    return spark.StructType(
        [spark.StructField(field.name, spark_type(field.type)) for field in schema.fields]
    )


def spark_type(schema: model.AnyOf) -> spark.DataType:
    """Return a type as Spark's."""
    match schema:
        case model.StructType():
            return spark_struct(schema)
        case model.ListType():
            return spark.ArrayType(spark_type(schema.items))
        case model.MapType():
            return spark.MapType(spark.StringType(), spark_type(schema.values))
        case model.BooleanType():
            return spark.BooleanType()
        case model.IntegerType():
            return spark.IntegerType() if schema.bits == 32 else spark.LongType()
        case model.NumberType():
            return spark.FloatType() if schema.bits == 32 else spark.DoubleType()
        case model.BinaryType():
            return spark.BinaryType()
        case model.TimestampType():
            return spark.TimestampType()
        case model.DateType():
            return spark.DateType()
        case model.DecimalType():
            return spark.DecimalType(schema.precision, schema.scale)
        case model.EnumType() if not isinstance(schema.values[0], str):
            return spark.LongType()
    return spark.StringType()


class TypedRows:
    """Makes the rows that Spark asked for of rows whose values are bytes."""

    def __init__(self, schema: pa.Schema, options: ReadOptions) -> None:
        self._schema, self._options = schema, options
        plain = [field for field in schema if field.name in PLAIN and field.name != "offset"]
        fixed = [pa.field("value", pa.binary()), pa.field("offset", pa.int64())]
        self.stored = pa.schema([*plain, *fixed])
        """The columns to read."""
        if options.columns:
            given = {*PLAIN, options.corrupt_column}
            self._kind = pa.struct([field for field in schema if field.name not in given])
        elif "value" in schema.names:
            self._kind = schema.field("value").type
        else:
            self._kind = pa.struct([])

    @staticmethod
    def are_needed(schema: pa.Schema, options: ReadOptions) -> bool:
        """Return whether a read with this schema decodes values."""
        if options.raw_values or options.queue:
            return False
        if options.corrupt_column in schema.names or options.mode != "PERMISSIVE":
            return True
        if options.columns:
            return any(name not in PLAIN for name in schema.names)
        return "value" in schema.names and pa.types.is_struct(schema.field("value").type)

    def of(self, rows: pa.RecordBatch, schema: model.StructType, log: str) -> pa.RecordBatch:
        """Return rows of a log with the columns that Spark asked for."""
        values = rows.column("value").to_pylist()
        try:
            typed = typed_values(values, schema, self._kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InvalidInput(
                f"log {log!r}: values cannot be read as {self._kind}: {error}; load the log again, "
                "because its schema may have changed"
            ) from error
        if typed.misfits and self._options.mode == "FAILFAST":
            offset = rows.column("offset")[typed.misfits[0]].as_py()
            raise InvalidInput(
                f"record {offset} of log {log!r} does not fit its schema, and option mode is "
                "FAILFAST; PERMISSIVE reports such records, DROPMALFORMED leaves them out",
                log=log,
                offset=offset,
            )
        columns = [
            self._column(field, rows, values, typed.column, typed.misfits) for field in self._schema
        ]
        made = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return without(made, typed.misfits) if self._options.mode == "DROPMALFORMED" else made

    def _column(
        self,
        field: pa.Field,
        rows: pa.RecordBatch,
        values: list[bytes | None],
        structs: pa.StructArray,
        misfits: list[int],
    ) -> pa.Array:
        if field.name in PLAIN:
            return rows.column(field.name)
        if field.name == self._options.corrupt_column:
            return texts_of_misfits(values, misfits, rows.num_rows)
        if not self._options.columns:
            return structs
        return structs.flatten()[self._kind.get_field_index(field.name)]
