"""A DataFrame or a view that is used for several queries answers each as a fresh one does.

Spark keeps the plan of a Python source with its DataFrame. With filter pushdown on it also keeps the
reader of the last filtered query, and a reader that left records out would leave them out of every
later query. So each query of a list runs on one DataFrame and on one view, one after the other, and is
compared with what a DataFrame of its own answers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream import Item

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EACH = 40
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

CONDITIONS = (
    "topic = 'a' and offset = 5",
    "offset < 3",
    "topic like 'part%' and offset in (1, 7, 900)",
    "topic in ('b', 'nowhere')",
    "partition = 1",
    "timestamp >= timestamp_millis(1010) and timestamp < timestamp_millis(1020)",
)


def counts(rows: DataFrame) -> list[int]:
    """Count what each condition keeps of one DataFrame, and after each what there is in all."""
    found: list[int] = []
    for condition in CONDITIONS:
        some = rows.where(condition)
        found += [some.count(), rows.count(), some.union(rows).count()]
    return found


def expected_counts(load: Callable[[], DataFrame]) -> list[int]:
    """The same by one query on a fresh DataFrame, which filters nothing."""
    kept = load().selectExpr("count(*)", *(f"count_if({one})" for one in CONDITIONS)).first()
    assert kept is not None
    return [count for some in kept[1:] for count in (some, kept[0], some + kept[0])]


@pytest.fixture
def path(tmp_path: Path) -> str:
    place = tmp_path / "rows.db"
    with millstream.open(place) as ms:
        for name in ("a", "b"):
            ms.log(name).append_many([Item(b"%d" % n, timestamp=1000 + n) for n in range(EACH)])
        parts = ms.log("parts", partitions=2)
        parts.append_many([Item(b"%d" % n, key=b"%d" % n) for n in range(EACH)])
    return str(place)


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_every_query_of_a_reused_one_answers_as_a_fresh_one_does(
    spark: SparkSession, path: str, pushdown: str
) -> None:
    spark.conf.set(PUSHDOWN, pushdown)

    def load() -> DataFrame:
        return spark.read.format("millstream").option("subscribe", "a,b,parts").load(path)

    expected = expected_counts(load)
    assert expected[:3] == [1, 3 * EACH, 3 * EACH + 1]
    assert counts(load()) == expected
    spark.sql(
        f"CREATE TEMPORARY VIEW made USING millstream OPTIONS (path '{path}', "
        "subscribe 'a,b,parts')"
    )
    assert counts(spark.table("made")) == expected


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_sql_on_a_view_answers_as_on_a_fresh_one(
    spark: SparkSession, path: str, pushdown: str
) -> None:
    spark.conf.set(PUSHDOWN, pushdown)
    make = (
        "CREATE OR REPLACE TEMPORARY VIEW rows USING millstream OPTIONS "
        f"(path '{path}', subscribePattern '[ab]')"
    )
    asked = (
        "SELECT count(*), sum(offset) FROM rows WHERE topic = 'a' AND offset > 7",
        "SELECT count(*), sum(offset) FROM rows",
        "SELECT count(*) FROM rows x JOIN rows y USING (offset) WHERE x.topic = 'a'",
        "SELECT count(*) FROM rows WHERE offset = (SELECT max(offset) FROM rows)",
        "SELECT topic, count(*) FROM rows GROUP BY topic HAVING topic <> 'a'",
        "SELECT count(*) FROM (SELECT * FROM rows WHERE offset < 3 UNION ALL SELECT * FROM rows)",
    )
    spark.sql(make)
    reused = [spark.sql(text).collect() for text in asked]
    fresh = []
    for text in asked:
        spark.sql(make)
        fresh.append(spark.sql(text).collect())
    assert reused == fresh
    assert fresh[-1][0][0] == 2 * EACH + 6


def test_local_sessions_leave_pushdown_off(spark: SparkSession) -> None:
    assert spark.conf.get(PUSHDOWN) == "false"


def test_a_dataframe_keeps_its_records_and_the_next_load_has_the_new_ones(
    spark: SparkSession, path: str
) -> None:
    """As docs/SPARK.md says: what was loaded stands still, and each way to load again sees more."""

    def load() -> DataFrame:
        return spark.read.format("millstream").option("subscribe", "a").load(path)

    options = f"USING millstream OPTIONS (path '{path}', subscribe 'a')"
    rows = load()
    spark.sql(f"CREATE TEMPORARY VIEW made {options}")
    spark.sql(f"CREATE TABLE kept {options}")
    assert (rows.count(), spark.table("made").count()) == (EACH, EACH)
    with millstream.open(path) as ms:
        ms.log("a").append_many([b"x"] * 10)
    assert (rows.count(), spark.table("made").count()) == (EACH, EACH)
    assert load().count() == EACH + 10
    assert spark.table("kept").count() == EACH + 10
    assert spark.sql("SELECT count(*) FROM kept").first()[0] == EACH + 10
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW made {options}")
    assert spark.table("made").count() == EACH + 10
