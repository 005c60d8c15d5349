"""Matching: which queues take a record, by their filters as Spark SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.errors import InvalidInput
from millstream.filters import parse
from millstream.filters.spark_value import MessageColumns, header, string
from millstream.queue.model.message import QueueInfo
from millstream.queue.rules.sources import may_match

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AT_MS = "at_ms"
"""The column that filters know as `_timestamp`."""

BETWEEN = "\x01"
"""Stands between names of queues: none of them can hold a control character."""


def matches(rows: DataFrame, infos: dict[str, QueueInfo], logs: Sequence[str]) -> DataFrame:
    """One row (log, offset, queue) for each queue that takes a record, by its filter as Spark SQL."""
    from pyspark.sql import functions as f

    names: dict[str, str] = {}
    conditions = [_condition(info, logs, names) for info in infos.values()]
    # Each header is looked up once, however many filters ask for it.
    looked_up = [f.expr(text).alias(column) for text, column in names.items()]
    values = ["value"] if ask_for_values(infos) else []
    if values and "value" not in rows.columns:
        raise InvalidInput(
            "a queue's filter names '_value', but the records have no column 'value'; keep it"
        )
    seen = rows.select(
        "topic", "offset", "key", f.unix_millis("timestamp").alias(AT_MS), *values, *looked_up
    )
    named = [
        f"if({condition}, {string(name)}, null)"
        for name, condition in zip(infos, conditions, strict=True)
    ]
    # One text of all names, taken apart again: a list would be filtered by interpreted code. The outer
    # form keeps Spark from asking the filters twice, to leave out records that none matches.
    joined = f.expr(f"concat_ws({string(BETWEEN)}, {', '.join(named)})").alias("queues")
    found = seen.select(f.col("topic").alias("log"), "offset", joined)
    one = f.explode_outer(f.split(f.nullif("queues", f.lit("")), BETWEEN)).alias("queue")
    return found.select("log", "offset", one).where("queue is not null")


def ask_for_values(infos: dict[str, QueueInfo]) -> bool:
    """Whether a filter asks which values are null, for which Spark needs their column."""
    filters = [info.spec.filter for info in infos.values() if info.spec.filter]
    return any("_value" in parse(text).fields for text in filters)


def _condition(info: QueueInfo, logs: Sequence[str], names: dict[str, str]) -> str:
    """A queue's filter as Spark SQL; headers become columns, which `names` gathers."""
    own = [log for log in logs if log in info.spec.sources or may_match(log, info.spec)]
    parts = []
    if len(own) < len(logs):
        parts.append(f"topic IN ({', '.join(map(string, own))})" if own else "FALSE")
    if info.spec.filter:
        condition = parse(info.spec.filter)
        text = condition.spark_sql(timestamp=AT_MS, log="topic", exact=False)
        for name in sorted(condition.names):
            # No literal can hold these words: what is not plain is written in hexadecimal.
            lookup = header(name, MessageColumns())
            text = text.replace(lookup, names.setdefault(lookup, f"h{len(names)}"))
        parts.append(f"coalesce({text}, FALSE)")
    return " AND ".join(parts) or "TRUE"
