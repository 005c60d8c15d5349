"""Promise: thousands of small logs are read, streamed and archived as one log of their size is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import millstream
from millstream import Millstream
from millstream.spark.archive.archive import Archive
from millstream.spark.options import read_options
from millstream.spark.pipelines.archive import archive
from millstream.spark.source.layout import schema_of
from millstream.spark.source.stream import LogStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGS, EACH = 2_000, 3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Millstream]:
    with millstream.open(tmp_path_factory.mktemp("many") / "store.db") as opened:
        with opened.transaction() as tx:
            for n in range(LOGS):
                tx.append_many(f"tenant-{n:05}", [b"%d" % n] * EACH)
        yield opened


def path_of(store: Millstream) -> str:
    return str(store.stats()["path"])


def load(spark: SparkSession, store: Millstream, **options: Any) -> DataFrame:
    reader = spark.read.format("millstream").option("path", path_of(store))
    return reader.options(subscribePattern="tenant-.*", **options).load()


def test_logs_share_tasks(spark: SparkSession, store: Millstream) -> None:
    rows = load(spark, store)
    assert rows.rdd.getNumPartitions() <= 2
    found = {(row.topic, row.offset, bytes(row.value)) for row in rows.collect()}
    expected = {(f"tenant-{n:05}", i, b"%d" % n) for n in range(LOGS) for i in range(EACH)}
    assert found == expected
    assert load(spark, store, minPartitions="5").rdd.getNumPartitions() == 5
    bounded = load(spark, store, maxRecordsPerPartition="1000")
    counts = bounded.selectExpr("spark_partition_id() as task").groupBy("task").count().collect()
    assert sum(row["count"] for row in counts) == LOGS * EACH
    assert max(row["count"] for row in counts) <= 1_000


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("topic = 'tenant-00007'", 1),
        ("topic IN ('tenant-00007', 'tenant-00008', 'none', '')", 2),
        ("topic LIKE 'tenant-000%'", 100),
        ("topic LIKE '%7'", 200),
        ("topic LIKE '%-019%'", 100),
        ("topic LIKE 'tenant-0%99'", 20),
        ("topic <=> 'tenant-00001' AND topic LIKE '%1'", 1),
    ],
)
def test_conditions_on_names_give_what_they_say(
    spark: SparkSession, store: Millstream, condition: str, expected: int
) -> None:
    found = load(spark, store).where(condition)
    assert found.select("topic").distinct().count() == expected


def reader_of(store: Millstream, **options: str) -> LogStreamReader:
    found = read_options({"path": path_of(store), **options}, streaming=True)
    return LogStreamReader(found, schema_of(found))


def test_a_stream_over_them_keeps_small_offsets_and_goes_on(store: Millstream) -> None:
    """Asked as Spark asks, positions through JSON, by a new reader for each batch."""
    position: dict[str, Any] | None = None
    seen: list[tuple[str, int]] = []
    for batch in range(4):
        reader = reader_of(
            store, subscribePattern="tenant-.*", startingOffsets="earliest", cursor="follows"
        )
        position = json.loads(json.dumps(position or reader.initialOffset()))
        if batch == 2:
            with store.transaction() as tx:
                tx.append("tenant-00000", b"more")
                tx.append("tenant-new", b"new")
        end = reader.latestOffset(position, ReadMaxRows(2 * LOGS))
        assert len(json.dumps(end)) < 3_000
        assert len(json.dumps(reader.reportLatestOffset())) < 3_000
        tasks = reader.partitions(position, end)
        assert len(tasks) <= 2
        for task in tasks:
            for rows in reader.read(task):
                seen += zip(
                    rows.column("topic").to_pylist(), rows.column("offset").to_pylist(), strict=True
                )
        assert (batch == 3) == (position == end)
        position = end
        reader.stop()
    assert len(seen) == len(set(seen)) == LOGS * EACH + 2
    assert [one.floor for one in store.log("tenant-01999").cursors()] == [EACH]
    assert [one.floor for one in store.log("tenant-new").cursors()] == [1]
    store.log("tenant-new").delete()


def test_they_are_archived_together_and_once(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    into = tmp_path / "kept"
    summary = archive(spark, path_of(store), into, pattern="tenant-00.*", round_records=2_000)
    assert (len(summary.logs), summary.files) == (1_000, 1_001)  # one log was cut by a round
    assert archive(spark, path_of(store), into, pattern="tenant-00.*").records == 0
    assert [one.stop for one in Archive(into).segments("tenant-00999")][-1] == EACH
    whole = load(spark, store, archive=str(into)).where("topic < 'tenant-01'")
    assert whole.rdd.getNumPartitions() <= 2
    assert whole.count() == summary.records


def test_ten_thousand_logs_are_read_and_streamed_and_their_checkpoint_is_small(
    spark: SparkSession, tmp_path: Path
) -> None:
    count, path = 10_000, tmp_path / "store.db"
    with millstream.open(path) as store:
        with store.transaction() as tx:
            for n in range(count):
                tx.append(f"tenant-{n:05}", b"%d" % n)
        rows = load(spark, store)
        assert rows.rdd.getNumPartitions() <= 5
        assert rows.selectExpr("count(distinct topic) as n", "count(*) as m").first() == (
            count,
            count,
        )
        reader = spark.readStream.format("millstream").option("path", str(path))
        reader = reader.option("subscribePattern", "tenant-.*").option(
            "maxOffsetsPerTrigger", 6_000
        )
        query = (
            reader.option("startingOffsets", "earliest")
            .load()
            .selectExpr("value", "'all' as topic")
            .writeStream.format("millstream")
            .option("path", str(path))
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        copied = sorted(int(record.value) for record in store.log("all").read())
    assert copied == list(range(count))
    offsets = [one for one in (tmp_path / "cp" / "offsets").iterdir() if one.name.isdecimal()]
    assert len(offsets) == 2
    assert max(one.stat().st_size for one in offsets) < 50_000
    assert max(len(progress.json) for progress in query.recentProgress) < 100_000
