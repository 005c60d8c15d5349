"""Queries over logs answer as the same queries over the same rows in Parquet do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream import Item

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EACH = 300

QUERIES = (
    "select count(*) from rows",
    "select count(1), min(offset), max(offset), count(topic) from rows",
    "select topic, count(*) from rows group by topic",
    "select topic, partition, count(*), max(offset) from rows group by topic, partition",
    "select partition, count(*) from rows where topic = 'parts' and offset > 3 group by partition",
    "select count(*) from rows where offset >= 7 and offset < 11 and topic in ('a', 'parts')",
    "select count(*) from rows where offset = 5 or topic = 'b'",
    "select count(*), max(offset) from rows where topic = 'nowhere'",
    "select count(*) from rows where topic > 'a' and topic is not null",
    "select count(*) from rows where topic is null",
    "select count(*) from rows where not (offset <=> 4)",
    "select count(value), count(key), count(distinct topic) from rows",
    "select sum(offset), avg(offset), min(value) from rows",
    "select key, count(*) from rows group by key",
    "select offset from rows where topic = 'a' and key = cast('k3' as binary)",
    "select cast(value as string) from rows where timestamp >= timestamp_millis(1290)",
    "select count(*) from rows where timestamp < timestamp_millis(1003)",
    "select count(*) from rows where appendTimestamp > timestamp'2020-01-01 00:00:00'",
    "select count(*) from rows where appendTimestamp < timestamp'2020-01-01 00:00:00'",
    "select offset % 3, count(*) from rows group by offset % 3 having count(*) > 1",
    "select l.offset, r.topic from rows l join rows r on l.offset = r.offset + 290 "
    "where l.topic = 'a' and r.topic = 'b'",
    "select topic, offset from rows where offset < 2 union all "
    "select topic, offset from rows where offset > 295",
    "select topic, row_number() over (partition by topic order by offset desc) n from rows "
    "where offset >= 296",
    "select 1 from rows where topic = 'a' limit 7",
    "select topic, (select max(offset) from rows) from rows where offset = 1",
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    place = tmp_path / "rows.db"
    with millstream.open(place) as ms:
        for name in ("a", "b"):
            for start in range(0, EACH, EACH // 3):
                ms.log(name).append_many(
                    [
                        Item(
                            None if n % 7 == 0 else b"%d" % n,
                            key=b"k%d" % (n % 5),
                            timestamp=1000 + n,
                        )
                        for n in range(start, start + EACH // 3)
                    ]
                )
        ms.fold()
        ms.log("b").truncate(before=20)
        parts = ms.log("parts", partitions=3)
        parts.append_many([Item(b"%d" % n, key=b"%d" % n) for n in range(EACH)])
    return str(place)


def answers(spark: SparkSession, query: str, frame: DataFrame) -> list[str]:
    frame.createOrReplaceTempView("rows")
    return sorted(map(str, spark.sql(query).collect()))


@pytest.mark.timeout(900)
def test_every_query_answers_as_over_parquet_on_fresh_and_on_reused_frames(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    def load() -> DataFrame:
        return spark.read.format("millstream").option("subscribe", "a,b,parts").load(path)

    load().write.parquet(str(tmp_path / "rows.parquet"))
    parquet = spark.read.parquet(str(tmp_path / "rows.parquet"))
    reused = load()
    for query in QUERIES:
        expected = answers(spark, query, parquet)
        assert answers(spark, query, load()) == expected, query
        assert answers(spark, query, reused) == expected, query


def test_a_frame_that_was_counted_shows_the_same_records_after_an_append(
    spark: SparkSession, path: str
) -> None:
    rows = spark.read.format("millstream").option("subscribe", "a").load(path)
    assert rows.count() == EACH
    with millstream.open(path) as ms:
        ms.log("a").append_many([b"new"] * 5)
    assert rows.count() == rows.select("key").union(rows.select("key")).count() // 2 == EACH
    assert len(rows.select("value").collect()) == EACH
    assert spark.read.format("millstream").option("subscribe", "a").load(path).count() == EACH + 5


def test_counts_read_no_record_and_other_queries_only_their_columns(
    spark: SparkSession, path: str
) -> None:
    rows = spark.read.format("millstream").option("subscribe", "a,b").load(path)

    def plan(frame: DataFrame) -> str:
        text: str = frame._jdf.queryExecution().executedPlan().toString()
        return text

    assert "LocalTableScan" in plan(rows.groupBy("topic").count())
    assert "columns=[key]" in plan(rows.groupBy("key").count())
    assert "conditions=[IsNotNull(offset), EqualTo(offset,5)]" in plan(rows.where("offset = 5"))


def test_without_the_jar_the_source_answers_the_same(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    """Spark's own adapter of Python sources, under the name that the package registers."""
    rows = spark.read.format("millstream").option("subscribe", "a,b").load(path)
    from millstream.spark.source.source import MillstreamSource

    class Plain(MillstreamSource):
        @classmethod
        def name(cls) -> str:
            return "millstream-plain"

    spark.dataSource.register(Plain)
    plain = spark.read.format("millstream-plain").option("subscribe", "a,b").load(path)
    assert plain.count() == rows.count()
    late = [frame.where("offset > 290").collect() for frame in (plain, rows)]
    assert sorted(map(str, late[0])) == sorted(map(str, late[1]))


def test_one_table_with_different_options_reads_what_each_of_them_says(
    spark: SparkSession, path: str
) -> None:
    spark.sql(f"CREATE TABLE both USING millstream OPTIONS (path '{path}', subscribe 'a,b')")
    counts = [
        f"SELECT count(*) n FROM both WITH (path = '{path}', subscribe = '{log}')"
        for log in ("a", "b")
    ]
    try:
        found = spark.sql(" UNION ALL ".join([*counts, "SELECT count(*) FROM both"])).collect()
        assert [row["n"] for row in found] == [EACH, EACH - 20, 2 * EACH - 20]
    finally:
        spark.sql("DROP TABLE both")


def test_conditions_on_a_queue_hold_with_a_schema_of_the_user_too(
    spark: SparkSession, path: str
) -> None:
    with millstream.open(path) as ms:
        ms.create_queue("work", sources=["b"], start="earliest")
    rows = spark.read.format("millstream").options(path=path, queue="work", state="available")
    chosen = rows.schema("topic string, offset long").load()
    assert chosen.where("offset >= 290 and topic = 'b'").count() == 10
    assert chosen.where("topic = 'a'").count() == 0
