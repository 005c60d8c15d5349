"""Promise: `matching` chooses the rows of any DataFrame by a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millstream.errors import InvalidInput
from millstream.spark.row_filter import matching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_filter_chooses_rows_of_any_frame(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(1, {"region": "eu"}, "a"), (2, {"region": "us"}, "a"), (3, None, "b")],
        "id int, headers map<string, string>, topic string",
    )
    for text, expected in (
        ("region = 'eu'", [1]),
        ("region IS NULL", [3]),
        ("_log = 'a' AND region <> 'eu'", [2]),
    ):
        assert [row.id for row in matching(rows, text).orderBy("id").collect()] == expected
    with pytest.raises(InvalidInput, match="needs a column 'key'"):
        matching(rows, "_key = 'a'")
