"""The columns that a read gives: Kafka's names, in Kafka's order, and when each record was appended.

A user may ask for some of them by a schema of their own; what is not asked for is not made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from millstream.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.spark.options import ReadOptions

_LOG = (
    "key binary, value binary, topic string, partition integer, offset long, timestamp timestamp, "
    "appendTimestamp timestamp"
)
_QUEUE = (
    "queue string, state string, claimId string, attempt integer, key binary, value binary, "
    "topic string, offset long, timestamp timestamp, reason string, damage string"
)
_ATTEMPTS = (
    "queue string, state string, claimId string, attempt integer, topic string, offset long, "
    "appendedAt timestamp, consumer string, claimedAt timestamp, endedAt timestamp, "
    "outcome string, reason string"
)


def _columns(text: str) -> StructType:
    """Columns by their names and types; Spark's own parser of such texts needs its Java."""
    made = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        made.add(name, kind)
    return made


def sink_schema() -> StructType:
    """The columns of a table that is written to."""
    return _columns("key binary, value binary, timestamp timestamp")


def log_schema(headers: str) -> StructType:
    """All columns of a log's records, with headers in one of their forms."""
    return _columns(_LOG).add("headers", _headers(headers))


def schema_of(options: ReadOptions, fields: StructType | None = None) -> StructType:
    """The columns of a read; `fields` are those of values that have a schema."""
    if options.state == "attempts":
        return _columns(_ATTEMPTS)
    made = StructType()
    for field in _columns(_QUEUE if options.queue else _LOG):
        if field.name != "value" or (options.values and fields is None):
            made.add(field)
        elif options.values and fields is not None and not options.columns:
            made.add("value", fields)
    if fields is not None and options.columns:
        made = StructType([*made.fields, *fields.fields])
    if options.headers:
        made.add("headers", _headers(options.headers))
    if fields is not None and options.mode == "PERMISSIVE":
        made.add(options.corrupt_column, StringType())
    return made


def _headers(form: str) -> DataType:
    if form == "kafka":
        return ArrayType(_columns("key string, value binary"))
    return MapType(
        StringType(), _columns("s string, i long, d double, b boolean, x binary, p binary")
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """A schema as Spark expects it of the batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    made: Any = to_arrow_schema(schema, timezone="UTC")
    return made


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Refuse columns that a read cannot give, or not of that type."""
    types = {column.name: column.dataType.simpleString() for column in schema_of(options)}
    for field in schema.fields:
        if _is_typed(field, options, types):
            continue
        expected_type, given_type = types.get(field.name), field.dataType.simpleString()
        if expected_type is None:
            raise InvalidInput(
                f"there is no column {field.name!r} in this read; expected some of "
                f"{', '.join(types)}"
            )
        if given_type != expected_type:
            raise InvalidInput(f"column {field.name!r} is {expected_type}, not {given_type}")
        if field.name == "value" and options.mode != "PERMISSIVE":
            raise InvalidInput(
                "option mode: is for the values of logs that have a schema, and the column value is "
                "binary; leave one of them out"
            )


def _is_typed(field: StructField, options: ReadOptions, types: dict[str, str]) -> bool:
    """Whether a column is made of values with a schema; its task knows whether the types agree."""
    if options.queue or options.raw_values or not options.values:
        return False
    is_report = field.name == options.corrupt_column and isinstance(field.dataType, StringType)
    if is_report or (options.columns and field.name not in types):
        return True
    return field.name == "value" and isinstance(field.dataType, StructType)
