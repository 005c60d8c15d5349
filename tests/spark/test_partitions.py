"""Logs with partitions: read as one topic by tasks of their own, and written by key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream import Millstream
from millstream.spark.partitions import RowSpreader
from millstream.spark.place import make_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = [f"key-{number % 20}" for number in range(200)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def store(path: str) -> Iterator[Millstream]:
    with millstream.open(path) as ms:
        orders = ms.log("orders", partitions=4)
        orders.append_many([str(number) for number in range(200)], keys=KEYS)
        yield ms


def read(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("millstream").options(path=path, **options).load()


def rows(found: DataFrame) -> set[tuple[Any, ...]]:
    listed = [tuple(row) for row in found.select("topic", "partition", "offset", "value").collect()]
    assert len(set(listed)) == len(listed)
    return {(topic, number, at, bytes(value)) for topic, number, at, value in listed}


def stored(ms: Millstream, log: str) -> set[tuple[Any, ...]]:
    return {(log, one.partition, one.offset, one.value) for one in ms.partitioned_log(log)}


def test_a_log_with_partitions_is_one_topic(
    spark: SparkSession, store: Millstream, path: str
) -> None:
    store.log("orders2").append(b"x")
    store.log("other", partitions=2).append(b"x")
    found = read(spark, path, subscribe="orders")
    assert rows(found) == stored(store, "orders")
    assert found.rdd.getNumPartitions() == 4
    assert rows(read(spark, path, subscribePattern="ord.*s")) == stored(store, "orders")
    both = read(spark, path, subscribePattern=".*")
    assert {row[0] for row in both.select("topic").distinct().collect()} == {
        "orders",
        "orders2",
        "other",
    }
    assert both.where("topic = 'orders'").count() == 200
    assert both.where("topic LIKE 'oth%'").count() == 1
    assert read(spark, path, subscribe="orders", minPartitions="2").rdd.getNumPartitions() == 2


def test_one_partition_can_be_read_by_its_own_name(
    spark: SparkSession, store: Millstream, path: str
) -> None:
    name, count = "orders-partition-2", len(store.log("orders", partitions=4).partition(2))
    found = read(spark, path, subscribe=name)
    assert {row[:2] for row in rows(found)} == {(name, 0)}
    assert found.count() == count


def test_offsets_are_said_by_partition(spark: SparkSession, store: Millstream, path: str) -> None:
    ends = [info.end_offset for info in store.log("orders", partitions=4).parts()]
    starting = f'{{"orders": {{"0": {ends[0]}, "1": 1, "2": -2, "3": -1}}}}'
    found = read(spark, path, subscribe="orders", startingOffsets=starting)
    assert {row[1:3] for row in rows(found)} == {
        *((1, offset) for offset in range(1, ends[1])),
        *((2, offset) for offset in range(ends[2])),
    }
    whole = read(spark, path, subscribe="orders", endingOffsets='{"orders": 1}')
    assert {row[1:3] for row in rows(whole)} == {(number, 0) for number in range(4)}
    assigned = read(spark, path, assign='{"orders": [0, 3]}')
    assert {row[:2] for row in rows(assigned)} == {("orders", 0), ("orders", 3)}


def test_rows_are_written_by_key(spark: SparkSession, store: Millstream, path: str) -> None:
    source = read(spark, path, subscribe="orders").select("key", "value")
    store.log("copies", partitions=3).create()
    store.log("topics", partitions=2).create()
    sink = {"path": path}
    source.write.format("millstream").options(**sink, log="copies").mode("append").save()
    by_row = source.selectExpr("key", "value", "if(key = 'key-1', 'plain', 'topics') AS topic")
    by_row.write.format("millstream").options(**sink).mode("append").save()
    copies, topics = store.partitioned_log("copies"), store.partitioned_log("topics")
    assert sorted(int(one.text) for one in copies) == list(range(200))
    assert all(one.key and copies.partition_for(one.key) == one.partition for one in copies)
    assert all(one.key and topics.partition_for(one.key) == one.partition for one in topics)
    assert len(topics) + len(store.log("plain")) == 200
    assert len(store.log("plain")) == 10


def test_a_stream_goes_on_in_every_partition(
    spark: SparkSession, store: Millstream, path: str, tmp_path: Path
) -> None:
    orders = store.log("orders", partitions=4)

    def run() -> None:
        stream = spark.readStream.format("millstream").options(
            path=path, subscribe="orders", startingOffsets="earliest"
        )
        writing = stream.load().select("key", "value").writeStream.format("millstream")
        options = {"path": path, "log": "copies", "checkpointLocation": str(tmp_path / "at")}
        writing.options(**options).trigger(availableNow=True).start().awaitTermination()

    copies = store.log("copies", partitions=3)
    copies.create()
    run()
    assert len(copies) == 200
    orders.append_many([str(number) for number in range(200, 300)], keys=KEYS[:100])
    run()
    assert sorted(int(one.text) for one in copies) == list(range(300))


def test_how_many_partitions_there_are_is_looked_up_where_the_store_is(
    store: Millstream, path: str, tmp_path: Path
) -> None:
    def place(of: str) -> Any:
        return make_place(of, server="", token="", token_file="", ca="", read_level="strong")

    with RowSpreader(place(path)) as spreader:
        assert (spreader.count("orders"), spreader.count("none")) == (4, 0)
    with RowSpreader(place(str(tmp_path / "none.db"))) as spreader:
        assert spreader.count("orders") == 0
