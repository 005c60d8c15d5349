"""Promise: a stream gives every record once and in batches of the size asked for, restarts included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream import Millstream
from millstream.spark.source.positions import unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        yield opened


Seen = list[tuple[int, str, int]]
"""Batch, log and offset of every row."""


def run(
    spark: SparkSession, store: Millstream, checkpoint: Path, **options: Any
) -> tuple[Seen, Any]:
    """Take what is there now; answers what was seen, and the query."""
    seen: Seen = []

    def take(rows: DataFrame, batch: int) -> None:
        seen.extend((batch, row.topic, row.offset) for row in rows.collect())

    query = (
        stream(spark, store, **options)
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return seen, query


def stream(spark: SparkSession, store: Millstream, **options: Any) -> DataFrame:
    reader = spark.readStream.format("millstream").option("path", store.stats()["path"])
    for name, value in ({"startingOffsets": "earliest"} | options).items():
        reader = reader.option(name, value)
    return reader.load()


def test_batches_have_the_size_asked_for_and_a_restart_goes_on(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    store.log("a").append_many([b"%d" % i for i in range(250)])
    first, query = run(spark, store, tmp_path / "cp", subscribe="a", maxOffsetsPerTrigger=100)
    assert [batch for batch, _, _ in first] == [0] * 100 + [1] * 100 + [2] * 50
    assert [offset for _, _, offset in first] == list(range(250))
    assert unpacked(json.loads(query.lastProgress["sources"][0]["endOffset"])) == {"a": 250}

    store.log("a").append_many([b"more"] * 7)
    second, _ = run(spark, store, tmp_path / "cp", subscribe="a", maxOffsetsPerTrigger=100)
    third, _ = run(spark, store, tmp_path / "cp", subscribe="a", maxOffsetsPerTrigger=100)
    assert [offset for _, _, offset in second] == list(range(250, 257))
    assert third == []


def test_logs_that_appear_later_are_found_and_read_from_their_beginning(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    store.log("in-a").append_many([b"x"] * 3)
    store.log("out").append(b"x")
    store.queue("in-box", sources=["none"]).put(b"an inbox is no log of the user's")
    options = {"subscribePattern": ".*in-.*", "startingOffsets": "latest"}
    first, _ = run(spark, store, tmp_path / "cp", **options)
    assert first == []

    store.log("in-b").append_many([b"y"] * 2)
    second, _ = run(spark, store, tmp_path / "cp", **options)
    assert sorted(seen[1:] for seen in second) == [("in-b", 0), ("in-b", 1)]


def test_a_running_stream_sees_a_new_log(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    store.log("in-a").append(b"x")
    rows = stream(spark, store, subscribePattern="in-.*")
    query = rows.writeStream.format("memory").queryName("found").start()
    query.processAllAvailable()
    store.log("in-b").append_many([b"y"] * 2)
    query.processAllAvailable()
    found = spark.sql("select topic, offset from found order by 1, 2").collect()
    query.stop()
    assert [tuple(row) for row in found] == [("in-a", 0), ("in-b", 0), ("in-b", 1)]


def test_a_limit_is_shared_by_backlog_and_leaves_nobody_out() -> None:
    from millstream.spark.source.stream import shares

    assert shares({"a": 5, "b": 0}, None) == {"a": 5, "b": 0}
    assert shares({"a": 10, "b": 10}, 30) == {"a": 10, "b": 10}
    assert shares({"a": 900, "b": 100}, 10) == {"a": 9, "b": 1}
    assert shares({"a": 10**6, "b": 1, "c": 1}, 10) == {"a": 9, "b": 1, "c": 0}
    assert shares({"a": 5, "b": 5, "c": 5}, 2) == {"a": 1, "b": 1, "c": 0}
    for most in range(1, 40):
        found = shares({"a": 7, "b": 13, "c": 21}, most)
        assert sum(found.values()) == min(most, 41)
        assert found["a"] <= 7
        assert found["b"] <= 13


def test_a_cursor_follows_the_stream_and_retention_waits_for_it(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    log = store.log("a")
    log.append_many([b"%d" % i for i in range(30)])
    log.retain(consumed=True)
    run(spark, store, tmp_path / "cp", subscribe="a", maxOffsetsPerTrigger=10, cursor="spark")

    (cursor,) = log.cursors()
    assert (cursor.name, cursor.floor, cursor.lag) == ("spark", 30, 0)
    log.append_many([b"x"] * 5)
    (cursor,) = log.cursors()
    assert cursor.lag == 5
    log.enforce_retention()
    assert log.start_offset() == 30


def test_records_that_are_gone_follow_fail_on_data_loss(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    store.log("a").append_many([b"x"] * 10)
    run(spark, store, tmp_path / "cp", subscribe="a")
    store.log("a").append_many([b"x"] * 10)
    store.log("a").truncate(before=15)

    with pytest.raises(Exception, match="begins at 15, so offsets 10 to 14 are lost"):
        run(spark, store, tmp_path / "cp", subscribe="a")
    seen, _ = run(spark, store, tmp_path / "cp", subscribe="a", failOnDataLoss="false")
    assert [offset for _, _, offset in seen] == list(range(15, 20))


def test_a_stream_refuses_an_end(spark: SparkSession, store: Millstream, tmp_path: Path) -> None:
    store.log("a").append(b"x")
    with pytest.raises(Exception, match="option endingOffsets: is for batch reads"):
        run(spark, store, tmp_path / "cp", subscribe="a", endingOffsets="latest")
