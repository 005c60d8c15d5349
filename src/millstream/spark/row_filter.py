"""Filters over rows that Spark holds: tasks evaluate the Python filter on batches of Arrow columns.

A translation of filters to Spark SQL was the alternative. It took 530 lines and the slowest tests of
the project to give the same answer for every row, and it was faster only for a record that more than
twelve filters had to examine.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import InvalidInput
from millstream.filters import Filter, parse
from millstream.spark.sink.rows import headers_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.header import Scalar

FIELD_COLUMNS = {"_key": "key", "_timestamp": "timestamp", "_log": "topic", "_value": "value"}
"""The column that holds each field of a filter."""


class FilterRows:
    """Rows of one log for filters; each column is decoded once, however many filters ask."""

    def __init__(self, rows: pa.RecordBatch, log: str | None) -> None:
        self._rows = rows
        self._log = log

    def matches(self, condition: Filter) -> pa.Array:
        """Return for each row whether the filter is true of it."""
        fields = condition.fields
        matched = condition.match_many(
            self._headers,
            keys=self._keys if "_key" in fields else None,
            timestamps=self._timestamps if "_timestamp" in fields else None,
            log=self._log,
            valid=self._valid if "_value" in fields else None,
        )
        return pa.array(map(bool, matched), pa.bool_())

    @cached_property
    def _headers(self) -> list[dict[str, Scalar]]:
        return [dict(headers.visible()) for headers in headers_of(self._rows.column("headers"))]

    @cached_property
    def _keys(self) -> list[bytes | str | None]:
        keys: list[bytes | str | None] = self._rows.column("key").to_pylist()
        return keys

    @cached_property
    def _timestamps(self) -> list[int | None]:
        times = self._rows.column("timestamp").cast(pa.timestamp("ms"), safe=False)
        numbers: list[int | None] = times.cast(pa.int64()).to_pylist()
        return numbers

    @cached_property
    def _valid(self) -> list[bool]:
        valid: list[bool] = self._rows.column("value").is_valid().to_pylist()
        return valid


def matching(rows: DataFrame, condition: str) -> DataFrame:
    """Return the rows that match a filter; columns have the names and types of `format("millstream")`.

    `headers` is needed; `key`, `timestamp`, `topic` and `value` are needed if the filter names them.
    """
    needed = {"headers", *(FIELD_COLUMNS[field] for field in parse(condition).fields)}
    if missing := sorted(needed.difference(rows.columns)):
        raise InvalidInput(f"the filter needs a column {missing[0]!r}, but the rows have none")

    def choose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parsed = parse(condition)
        for batch in batches:
            # Only a filter that names the log needs the rows of each log apart.
            groups = rows_by_log(batch) if "_log" in parsed.fields else [(None, batch)]
            for log, log_rows in groups:
                yield log_rows.filter(FilterRows(log_rows, log).matches(parsed))

    return rows.mapInArrow(choose, rows.schema)


def rows_by_log(batch: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Yield each log in the column `topic` with its rows."""
    topics = batch.column("topic")
    logs = topics.unique().to_pylist()
    for log in logs:
        same_log = pc.is_null(topics) if log is None else pc.equal(topics, log)
        yield log, batch if len(logs) == 1 else batch.filter(same_log)
