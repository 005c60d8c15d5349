"""Promise: rows assign stored messages to queues by reference, each once, whatever is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream import Millstream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        for name in ("even", "odd"):
            opened.queue(name, sources=["jobs*"], router="spark", start="earliest")
        yield opened


def append(store: Millstream, first: int, last: int, log: str = "jobs") -> None:
    store.log(log).append_many([b"%d" % i for i in range(first, last)])


def sink(rows: DataFrame, store: Millstream, **options: Any) -> None:
    writer = rows.write.format("millstream").mode("append").option("assign", "true")
    for name, value in ({"path": store.stats()["path"]} | options).items():
        writer = writer.option(name, value)
    writer.save()


def claimed(store: Millstream, queue: str) -> list[int]:
    return [int(message.value) for message in store.queue(queue).claim(1_000)]


ROUTED = "if(offset % 2 = 0, 'even', 'odd') as queue"


def run(spark: SparkSession, store: Millstream, checkpoint: Path, **options: Any) -> None:
    path = store.stats()["path"]
    reader = spark.readStream.format("millstream").option("path", path)
    rows = reader.option("subscribe", "jobs").option("metadataOnly", "true")
    rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 30)
    writer = rows.load().selectExpr("topic", "offset", ROUTED).writeStream.format("millstream")
    for name, value in ({"path": path, "assign": "true"} | options).items():
        writer = writer.option(name, value)
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_the_queue_leaves_routing_to_spark(store: Millstream) -> None:
    append(store, 0, 10)
    assert store.queue("even").claim(10) == []
    store.queue("even").put(b"7")
    assert claimed(store, "even") == [7]


def test_a_stream_assigns_and_a_deleted_checkpoint_assigns_nothing_twice(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    append(store, 0, 100)
    run(spark, store, tmp_path / "one")
    append(store, 100, 120)
    run(spark, store, tmp_path / "two")  # begins anew, in other batches

    assert claimed(store, "even") == list(range(0, 120, 2))
    assert claimed(store, "odd") == list(range(1, 120, 2))


def test_rows_may_wish_for_priority_group_and_delay(spark: SparkSession, store: Millstream) -> None:
    queue = store.queue(
        "wishes", sources=["jobs"], router="spark", start="earliest", priority_by="p", group_by="g"
    )
    append(store, 0, 5)
    sink(
        spark.range(5).selectExpr(
            "'jobs' as log",
            "id as offset",
            "'wishes' as queue",
            "cast(id as int) as priority",
            "if(id = 4, 3600D, null) as delay",
            "if(id < 2, 'pair', null) as group",
        ),
        store,
    )
    assert [int(message.value) for message in queue.claim(10)] == [
        3,
        2,
        0,
    ]  # a group keeps its order
    assert queue.info().delayed == 1


def test_all_named_queues_are_moved_past_what_was_looked_at(
    spark: SparkSession, store: Millstream
) -> None:
    append(store, 0, 20)
    rows = spark.range(20).selectExpr(
        "'jobs' as log", "id as offset", "if(id = 3, 'odd', null) as queue"
    )
    sink(rows, store, queues="even,odd")

    assert claimed(store, "odd") == [3]
    assert claimed(store, "even") == []
    assert store.queue("even").info().unrouted == store.queue("odd").info().unrouted == 0


def test_a_gap_is_refused_and_nothing_is_passed_over(
    spark: SparkSession, store: Millstream
) -> None:
    append(store, 0, 20)
    rows = spark.range(10, 20).selectExpr("'jobs' as log", "id as offset", "'even' as queue")
    with pytest.raises(
        Exception, match="stands at offset 0 of log 'jobs', and what is assigned beg"
    ):
        sink(rows, store, queues="even")
    assert store.queue("even").info().unrouted == 20


def test_what_is_assigned_keeps_its_bytes_until_it_is_done(
    spark: SparkSession, store: Millstream
) -> None:
    append(store, 0, 10)
    rows = spark.range(10).selectExpr(
        "'jobs' as log", "id as offset", ROUTED.replace("offset", "id")
    )
    sink(rows, store, queues="even,odd")
    store.log("jobs").truncate(before=10)
    store.log("jobs").enforce_retention()
    assert claimed(store, "even") == [0, 2, 4, 6, 8]


def test_many_are_assigned_in_several_commits(
    spark: SparkSession, store: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.spark.sink import assignment

    monkeypatch.setattr(assignment, "ASSIGNED_MAX", 7)
    append(store, 0, 40)
    found = assignment.Gathered(
        {("even", "jobs"): _offsets(range(0, 40, 2)), ("odd", "jobs"): _offsets(range(1, 40, 2))},
        {},
        {"jobs": (0, 39)},
    )
    assignments = assignment.assignments_of(store.session, [found], ["even", "odd"])
    commands = list(assignment.commands(assignments))
    assert max(sum(n for one in some for _, n in one.runs) for some in commands) <= 7
    for _ in range(2):
        for some in commands:
            store.session.execute(assignment.AssignMessages(some))
    assert claimed(store, "even") == list(range(0, 40, 2))
    assert claimed(store, "odd") == list(range(1, 40, 2))


def _offsets(numbers: range) -> bytes:
    from array import array

    return array("q", numbers).tobytes()


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        ("'jobs' as log, id as offset", {}, "a column 'queue' is needed"),
        ("'jobs' as log, id as offset, 'own' as queue", {}, "routes its messages itself; specify"),
        ("'other' as log, id as offset, 'even' as queue", {}, "does not take from log 'other'"),
        ("'jobs' as log, id + 100 as offset, 'even' as queue", {}, "there is no offset 102"),
        ("'jobs' as log, id as offset, 'nowhere' as queue", {}, "there is no queue 'nowhere'"),
        (
            "'jobs' as log, id as offset, 'even' as queue, 1 as priority",
            {},
            "does not look at a priority",
        ),
        ("'jobs' as log, id as offset, 'even' as queue", {"queues": "odd"}, "does not name 'even'"),
        ("cast(null as string) as log, id as offset, 'even' as queue", {}, "names no log"),
    ],
)
def test_what_cannot_be_assigned_is_refused(
    spark: SparkSession, store: Millstream, select: str, options: dict[str, str], message: str
) -> None:
    store.queue("own", sources=["jobs"], start="earliest")
    append(store, 0, 10)
    append(store, 0, 10, log="other")
    with pytest.raises(Exception, match=message):
        sink(spark.range(3).selectExpr(*select.split(", ")), store, **options)
    assert claimed(store, "even") == []
