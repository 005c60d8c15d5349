"""Promise: a queue's states can be read as tables, and reading them changes nothing."""

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
    """A queue with 3 done, 2 failed, 4 in flight, 2 routed, and 5 not yet looked at."""
    with millstream.open(tmp_path / "store.db") as opened:
        queue = opened.create_queue(
            "work", sources="jobs", filter="n <> 1", lease=3600, backoff=0, max_attempts=2
        )
        jobs = opened.log("jobs")
        jobs.append_many([b"%d" % i for i in range(12)], headers=[{"n": i} for i in range(12)])
        done = queue.claim(3)
        queue.ack(done)
        for message in queue.claim(2):
            queue.fail(message, reason="broken")
        again = queue.claim(1)
        queue.nack(again)
        queue.claim(4, consumer="me")
        jobs.append_many([b"late"] * 3, headers=[{"n": i} for i in range(3)])
        queue.put(b"put")
        yield opened


def load(spark: SparkSession, store: Millstream, state: str, **options: Any) -> DataFrame:
    reader = spark.read.format("millstream").option("path", store.stats()["path"])
    for name, value in ({"queue": "work", "state": state} | options).items():
        reader = reader.option(name, value)
    return reader.load()


def test_each_state_has_its_messages(spark: SparkSession, store: Millstream) -> None:
    sequence = store.stats()["sequence"]
    found = {
        state: sorted(bytes(row.value) for row in load(spark, store, state).collect())
        for state in ("available", "in_flight", "done", "failed")
    }
    assert store.stats()["sequence"] == sequence
    assert found["failed"] == [b"4", b"5"]
    assert len(found["done"]) == 3
    assert len(found["in_flight"]) == 4
    assert found["available"] == [b"10", b"11", b"late", b"late", b"put"]


def test_rows_say_what_is_known_of_a_message(spark: SparkSession, store: Millstream) -> None:
    failed = load(spark, store, "failed", typedHeaders="true").orderBy("offset").first()
    assert (failed.queue, failed.state, failed.topic, failed.offset) == (
        "work",
        "failed",
        "jobs",
        4,
    )
    assert (failed.attempt, failed.reason, failed.headers["n"].i) == (1, "broken", 4)
    message = next(iter(store.queue("work").peek(10, state="failed")))
    assert failed.claimId == str(message.claim_id)

    unrouted = load(spark, store, "available").where("claimId is null").collect()
    assert {row.attempt for row in unrouted} == {0}


def test_attempts_tell_who_tried_when_and_how_it_ended(
    spark: SparkSession, store: Millstream
) -> None:
    rows = load(spark, store, "attempts").collect()
    outcomes = sorted(row.outcome for row in rows)
    assert outcomes == ["again"] + ["done"] * 3 + ["failed"] * 2 + ["in_flight"] * 4
    twice = [row for row in rows if row.attempt == 2]
    assert [(row.consumer, row.outcome, row.endedAt) for row in twice] == [
        ("me", "in_flight", None)
    ]
    for row in rows:
        assert row.appendedAt <= row.claimedAt
        assert row.endedAt is None or row.claimedAt <= row.endedAt


def test_more_than_a_page(spark: SparkSession, store: Millstream) -> None:
    queue = store.queue("many", lease=30)
    queue.put_many([b"%d" % i for i in range(2_500)])
    for _ in range(5):
        queue.ack(queue.claim(500))
    assert load(spark, store, "done", queue="many").count() == 2_500
    assert load(spark, store, "attempts", queue="many").count() == 2_500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": "asleep"}, "option state: expected one of available, delayed, in_flight"),
        ({"queue": "nowhere"}, "there is no queue 'nowhere'"),
        ({"subscribe": "jobs"}, "got subscribe and queue"),
    ],
)
def test_what_cannot_be_read_is_refused(
    spark: SparkSession, store: Millstream, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        load(spark, store, **({"state": "done"} | options)).collect()


def test_a_log_of_changes_has_columns_for_reports(spark: SparkSession, tmp_path: Path) -> None:
    with millstream.open(tmp_path / "store.db") as store:
        queue = store.create_queue("work", changes="changes", max_attempts=1, lease=3600)
        queue.put_many([b"%d" % i for i in range(10)])
        queue.ack(queue.claim(4, consumer="ada"))
        queue.fail(queue.claim(3, consumer="bob"), reason="broken")
        queue.claim(1)
        changes = load(spark, store, "", queue="", subscribe="changes", columns="true")
        changes.createOrReplaceTempView("changes")
        states = spark.sql(
            "select state, count(*) from (select max_by(state, offset) as state from changes "
            "group by queue, message) group by state"
        )
        assert dict(states.collect()) == {"done": 4, "failed": 3, "in_flight": 1, "available": 2}
        attempts = spark.sql(
            "select consumer, count(*) from changes where change = 'claimed' and consumer <> '' "
            "group by consumer having count(*) > 1"
        )
        assert dict(attempts.collect()) == {"ada": 4, "bob": 3}
        waits = spark.sql(
            "select min(claimed.at >= put.at) from changes put join changes claimed using (message) "
            "where put.change = 'put' and claimed.change = 'claimed'"
        )
        assert waits.collect()[0][0]
