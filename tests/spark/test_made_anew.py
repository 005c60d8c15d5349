"""A checkpoint is of one log: a log that is deleted and made anew under its name is another one.

Promises: a strict stream ends with an error that says so, whatever the lengths of both logs. With
failOnDataLoss=false the new log is read from its beginning, every record once. Checkpoints of older
versions, which have no ids, go on as before. A stream of a log of which records were set aside
continues where the old and the new log begin to differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import millstream
from millstream import Millstream
from millstream.errors import Conflict
from millstream.replica.commands import SetAside
from millstream.spark.options import read_options
from millstream.spark.source.layout import schema_of
from millstream.spark.source.stream import LogStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANEW = "is of another log 'orders'"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "rows.db") as opened:
        yield opened


def reader_of(store: Millstream, **options: str) -> LogStreamReader:
    wanted = {"subscribe": "orders", "startingOffsets": "earliest", **options}
    found = read_options({"path": store.stats()["path"], **wanted}, streaming=True)
    return LogStreamReader(found, schema_of(found))


def noted(position: dict[str, Any]) -> dict[str, Any]:
    """As Spark keeps it in the checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(position))
    return found


def run_batch(
    store: Millstream, position: dict[str, Any] | None, **options: str
) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    """Plan and read one batch by a reader of its own, as after a restart."""
    reader = reader_of(store, **options)
    try:
        start = noted(position or reader.initialOffset())
        end = noted(reader.latestOffset(start, ReadAllAvailable()))
        return end, rows_of(reader, start, end)
    finally:
        reader.stop()


def rows_of(
    reader: LogStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[tuple[str, bytes]]:
    return [
        (topic, value)
        for task in reader.partitions(start, end)
        for rows in reader.read(task)
        for topic, value in zip(
            rows.column("topic").to_pylist(), rows.column("value").to_pylist(), strict=True
        )
    ]


def fill(store: Millstream, count: int, name: str = "orders") -> list[tuple[str, bytes]]:
    values = [b"%s %d" % (name.encode(), n) for n in range(count)]
    store.log(name).append_many(values)
    return [(name, value) for value in values]


def make_anew(store: Millstream, count: int) -> list[tuple[str, bytes]]:
    store.log("orders").delete()
    return fill(store, count)


@pytest.mark.parametrize("count", [50, 100, 150])
def test_a_strict_stream_does_not_go_on_in_another_log(store: Millstream, count: int) -> None:
    fill(store, 100)
    position, rows = run_batch(store, None)
    assert len(rows) == 100
    make_anew(store, count)
    with pytest.raises(Conflict, match=ANEW):
        run_batch(store, position)


@pytest.mark.parametrize("count", [50, 100, 150])
def test_without_strictness_the_new_log_is_read_once(store: Millstream, count: int) -> None:
    options = {"failOnDataLoss": "false", "cursor": "follows"}
    fill(store, 100)
    position, _ = run_batch(store, None, **options)
    expected = make_anew(store, count)
    position, rows = run_batch(store, position, **options)
    assert rows == expected
    again, rows = run_batch(store, position, **options)
    assert (again, rows) == (position, [])
    assert [cursor.floor for cursor in store.log("orders").cursors()] == [count]


def test_a_reader_that_stays_notices_it_too(store: Millstream) -> None:
    fill(store, 100)
    for strict in ("true", "false"):
        reader = reader_of(store, failOnDataLoss=strict, cursor=f"follows {strict}")
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        expected = make_anew(store, 150)
        if strict == "true":
            with pytest.raises(Conflict, match=ANEW):
                reader.latestOffset(start, ReadAllAvailable())
        else:
            end = reader.latestOffset(start, ReadAllAvailable())
            assert rows_of(reader, start, end) == expected
            reader.commit(end)
            assert [cursor.floor for cursor in store.log("orders").cursors()] == [150]
        reader.stop()


def test_a_batch_that_was_planned_before_holds_nothing_of_the_new_log(store: Millstream) -> None:
    fill(store, 100)
    planner = reader_of(store)
    start = noted(planner.initialOffset())
    end = noted(planner.latestOffset(start, ReadAllAvailable()))
    planner.stop()
    expected = make_anew(store, 150)
    strict, lenient = reader_of(store), reader_of(store, failOnDataLoss="false")
    with pytest.raises(Conflict, match=ANEW):
        strict.partitions(start, end)
    assert rows_of(lenient, start, end) == []
    after = lenient.latestOffset(end, ReadAllAvailable())
    assert rows_of(lenient, end, after) == expected
    strict.stop()
    lenient.stop()


def test_a_checkpoint_without_ids_goes_on(store: Millstream) -> None:
    fill(store, 100)
    same, rows = run_batch(store, {"orders": 100})
    assert (same, rows) == ({"orders": 100}, [])  # Spark runs no batch for it
    store.log("orders").append(b"more")
    position, rows = run_batch(store, {"orders": 100})
    assert rows == [("orders", b"more")]
    make_anew(store, 150)
    with pytest.raises(Conflict, match=ANEW):
        run_batch(store, position)


def test_partitions_are_logs_too(store: Millstream) -> None:
    def fill_parts(count: int) -> None:
        parts = store.log("orders", partitions=2)
        parts.append_many([b"%d" % n for n in range(count)], keys=[f"{n}" for n in range(count)])

    fill_parts(100)
    position, rows = run_batch(store, None)
    assert len(rows) == 100
    store.log("orders", partitions=2).delete()
    fill_parts(300)
    with pytest.raises(Conflict, match="is of another log 'orders-partition-0'"):
        run_batch(store, position)
    _, rows = run_batch(store, position, failOnDataLoss="false")
    assert len(rows) == 300


def test_one_of_many_logs_is_noticed(store: Millstream) -> None:
    with store.transaction() as tx:
        for number in range(150):
            tx.append(f"log-{number:03}", b"x")
    chosen = {"subscribe": "", "subscribePattern": "log-.*"}
    position, rows = run_batch(store, None, **chosen)
    assert "packed" in position
    assert len(rows) == 150
    store.log("log-077").delete()
    fill(store, 5, "log-077")
    with pytest.raises(Conflict, match="another log 'log-077'"):
        run_batch(store, position, **chosen)
    _, rows = run_batch(store, position, **chosen, failOnDataLoss="false")
    assert rows == [("log-077", b"log-077 %d" % n) for n in range(5)]


def test_a_query_of_spark_says_it(spark: SparkSession, store: Millstream, tmp_path: Path) -> None:
    def copy(**options: str) -> None:
        rows = (
            spark.readStream.format("millstream")
            .option("path", store.stats()["path"])
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .options(**options)
            .load()
        )
        sink = rows.selectExpr("value", "'copy' as topic").writeStream.format("millstream")
        sink = sink.option("path", store.stats()["path"])
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start().awaitTermination()

    fill(store, 100)
    copy()
    make_anew(store, 150)
    with pytest.raises(Exception, match=ANEW):
        copy()
    assert store.log("copy").end_offset() == 100
    copy(failOnDataLoss="false")
    assert store.log("copy").end_offset() == 250


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}, {"cursor": "follower"}])
def test_a_stream_continues_where_records_were_set_aside(
    store: Millstream, options: dict[str, str]
) -> None:
    expected = fill(store, 10)
    position, rows = run_batch(store, None, **options)
    assert rows == expected
    for at in (8, 6):
        store.session.execute(SetAside("orders", at, 0))
        store.log("orders").append(b"other %d" % at)
        position, rows = run_batch(store, position, **options)
        assert rows == [("orders", b"other %d" % at)]
    assert run_batch(store, position, **options) == (position, [])
    store.session.execute(SetAside("orders", 7, 0))
    store.log("orders").append(b"next")
    assert run_batch(store, position, **options)[1] == [("orders", b"next")]


def test_a_planned_batch_is_read_if_its_records_were_not_set_aside(store: Millstream) -> None:
    expected = fill(store, 10)
    reader = reader_of(store)
    start = noted(reader.initialOffset())
    end = noted(reader.latestOffset(start, ReadAllAvailable()))
    reader.stop()
    store.session.execute(SetAside("orders", 10, 0))
    again = reader_of(store)
    assert rows_of(again, start, end) == expected
    store.session.execute(SetAside("orders", 9, 0))
    with pytest.raises(Conflict, match=ANEW):
        rows_of(reader_of(store), start, end)
    assert rows_of(reader_of(store, failOnDataLoss="false"), start, end) == []
