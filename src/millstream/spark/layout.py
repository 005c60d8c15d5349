"""The columns that a read gives: Kafka's names, in Kafka's order, and when each record was appended.

A user may ask for some of them by a schema of their own; what is not asked for is not made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from millstream.spark.options import ReadOptions

KAFKA_HEADERS = "array<struct<key: string, value: binary>>"
TYPED_HEADERS = "map<string, struct<s: string, i: bigint, d: double, b: boolean>>"

SINK = "key binary, value binary, timestamp timestamp"
"""The columns of a table that is written to."""

_QUEUE = (
    "queue string, state string, claimId string, attempt int, key binary, value binary, "
    "topic string, offset bigint, timestamp timestamp, reason string"
)
_ATTEMPTS = (
    "queue string, state string, claimId string, attempt int, topic string, offset bigint, "
    "appendedAt timestamp, "
    "consumer string, claimedAt timestamp, endedAt timestamp, outcome string, reason string"
)


def schema_of(options: ReadOptions) -> str:
    """The columns of a read, as Spark's DDL."""
    if options.queue:
        found = _ATTEMPTS if options.state == "attempts" else _QUEUE
        if options.state == "attempts":
            return found
        columns = found.split(", ")
        if not options.values:
            columns.remove("value binary")
        return ", ".join(columns) + _headers(options)
    value = "value binary, " if options.values else ""
    return (
        f"key binary, {value}topic string, partition int, offset bigint, timestamp timestamp, "
        f"appendTimestamp timestamp{_headers(options)}"
    )


def _headers(options: ReadOptions) -> str:
    forms = {"": "", "kafka": f", headers {KAFKA_HEADERS}", "typed": f", headers {TYPED_HEADERS}"}
    return forms[options.headers]


def arrow_schema(schema: StructType) -> pa.Schema:
    """A schema as Spark expects it of the batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    made: Any = to_arrow_schema(schema, timezone="UTC")
    return made


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Refuse columns that a read cannot give, or not of that type."""
    known = types_of(schema_of(options))
    for field in schema.fields:
        wanted = known.get(field.name)
        found = field.dataType.simpleString().replace(" ", "")
        if wanted is None:
            raise InvalidInput(
                f"there is no column {field.name!r} in this read; expected some of "
                f"{', '.join(known)}"
            )
        if found != wanted:
            raise InvalidInput(f"column {field.name!r} is {wanted}, not {found}")


def types_of(ddl: str) -> dict[str, str]:
    """Columns and their types, of DDL, without blanks; commas inside brackets belong to a type."""
    found, depth, start = {}, 0, 0
    for at, letter in enumerate(ddl + ","):
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            name, _, kind = ddl[start:at].strip().partition(" ")
            found[name] = kind.replace(" ", "")
            start = at + 1
    return found
