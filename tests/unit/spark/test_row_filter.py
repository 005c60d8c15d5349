"""Promise: a filter gives the same answer for rows in Arrow columns as for the record itself."""

from __future__ import annotations

from random import Random

import pytest

from millstream.filters import parse
from tests.unit.filters.cases import random_condition, random_row, render

pytestmark = pytest.mark.requires("spark")

FILTERS = 200
ROWS = 100


def test_random_filters_agree_on_rows_with_every_kind_of_edge() -> None:
    import pyarrow as pa

    from millstream.spark.row_filter import FilterRows, rows_by_log
    from millstream.spark.source.columns import header_column
    from millstream.spark.source.layout import arrow_schema, log_schema

    random = Random(7)
    rows = [random_row(random) for _ in range(ROWS)]
    kind = arrow_schema(log_schema("typed")).field("headers").type
    batch = pa.record_batch(
        {
            "number": pa.array(range(ROWS)),
            "headers": header_column([dict(row.headers) for row in rows], kind),
            "key": pa.array([row.key for row in rows], pa.binary()),
            "timestamp": pa.array([row.timestamp for row in rows], pa.int64()),
            "topic": pa.array([row.log for row in rows], pa.string()),
            "value": pa.array([b"" if row.has_value else None for row in rows], pa.binary()),
        }
    )
    for _ in range(FILTERS):
        condition = parse(render(random_condition(random), random))
        matched: list[int] = []
        for log, log_rows in rows_by_log(batch):
            chosen = log_rows.filter(FilterRows(log_rows, log).matches(condition))
            matched += chosen.column("number").to_pylist()
        assert sorted(matched) == [
            number
            for number, row in enumerate(rows)
            if condition.matches(
                row.headers, row.key, row.timestamp, row.log, has_value=row.has_value
            )
        ], condition.text
