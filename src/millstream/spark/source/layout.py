"""The columns that a read gives: Kafka's names, in Kafka's order, and when each record was appended.

A user may ask for some of them by a schema of their own; what is not asked for is not made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

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


def schema_of(options: ReadOptions) -> StructType:
    """The columns of a read."""
    if options.state == "attempts":
        return _columns(_ATTEMPTS)
    columns = _columns(_QUEUE if options.queue else _LOG)
    made = StructType([field for field in columns if field.name != "value" or options.values])
    if options.headers:
        made.add("headers", _headers(options.headers))
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
        expected_type, given_type = types.get(field.name), field.dataType.simpleString()
        if expected_type is None:
            raise InvalidInput(
                f"there is no column {field.name!r} in this read; expected some of "
                f"{', '.join(types)}"
            )
        if given_type != expected_type:
            raise InvalidInput(f"column {field.name!r} is {expected_type}, not {given_type}")
