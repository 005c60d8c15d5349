"""The log of changes of a queue: a record for each change of a message's state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import millstream
from millstream import MessageChange, Millstream
from millstream.clock import Clock
from millstream.command import Transact
from millstream.errors import Conflict, InvalidInput, NotFound
from millstream.log.commands import DeleteLog
from millstream.queue.commands import FinishClaims
from millstream.testing import Probe
from millstream.testing.clock import SimulatedClock

STATES = ("available", "delayed", "in_flight", "done", "failed", "cancelled")


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def ms(clock: Clock) -> Iterator[Millstream]:
    with millstream.open(":memory:", clock=clock) as ms:
        yield ms


def changes(ms: Millstream, log: str = "changes") -> list[MessageChange]:
    return list(ms.log(log).read(type=MessageChange))


def names(ms: Millstream) -> list[str]:
    return [change.change for change in changes(ms)]


def folded(ms: Millstream) -> dict[int, tuple[str, int]]:
    """Return state and attempt of each message by the log of changes."""
    latest = {change.message: change for change in changes(ms)}
    return {
        message: (change.state, change.attempt)
        for message, change in latest.items()
        if change.state != "removed"
    }


def stored(ms: Millstream, queue: str) -> dict[int, tuple[str, int]]:
    """Return state and attempt of each message as the queue tells them."""
    states: Any = STATES
    return {
        message.claim_id: ("available" if state == "delayed" else state, message.attempt)
        for state in states
        for message in ms.queue(queue).peek(1_000, state=state)
    }


def test_each_change_is_a_record(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("orders", changes="changes", max_attempts=2, backoff=5)
    queue.put_many([b"a", b"b", b"c"])
    clock.advance(7)
    first, second, third = queue.claim(3, lease=30, consumer="ada")
    queue.ack(first)
    queue.nack(second, reason="busy")
    clock.advance(31)
    (again, last) = queue.claim(3, consumer="bob")
    queue.fail([again, last], reason="no")
    assert names(ms) == [
        *("put", "put", "put"), *("claimed",) * 3, "done", "released", "expired", "claimed", "claimed", "failed", "failed"
    ]  # fmt: skip
    done, released, expired, claimed = changes(ms)[6:10]
    put, *_, waited = changes(ms)[:4]
    assert (waited.at - put.at, waited.consumer) == (7_000, "ada")
    assert (done.log, done.log_offset, done.attempt) == ("queue:orders", 0, 1)
    assert (released.reason, released.until) == ("busy", released.at + 5_000)
    assert (expired.message, expired.reason) == (third.claim_id, "lease expired")
    assert (claimed.consumer, claimed.attempt, claimed.until) == ("bob", 2, claimed.at + 30_000)
    assert folded(ms) == stored(ms, "orders")


def test_the_rarer_changes_are_records(ms: Millstream) -> None:
    queue = ms.create_queue("orders", changes="changes", max_attempts=1)
    id = queue.put(b"later", delay=60)
    assert changes(ms)[0].until == changes(ms)[0].at + 60_000
    queue.cancel(id)
    queue.put(b"x")
    queue.fail(queue.claim())
    queue.redrive()
    queue.pop()
    queue.put_many([b"y", b"z"], delay=60)
    queue.purge()
    assert names(ms) == [
        *("put", "cancelled", "put", "claimed", "failed", "removed", "redriven", "claimed", "done"),
        *("put", "put", "removed", "removed"),
    ]
    assert folded(ms) == stored(ms, "orders")


def test_records_of_sources_are_put_when_they_are_routed(ms: Millstream) -> None:
    ms.log("clicks").append_many([b"1", b"2", b"3"])
    queue = ms.create_queue("work", sources="click*", start="earliest", changes="changes")
    assert changes(ms) == []
    queue.claim(2)
    assert names(ms) == ["put", "put", "put", "claimed", "claimed"]
    assert {(change.log, change.log_offset) for change in changes(ms)} == {
        ("clicks", offset) for offset in range(3)
    }


def test_the_log_has_a_schema_and_keys_by_message(ms: Millstream) -> None:
    queue = ms.create_queue("orders", changes=ms.log("changes"))
    queue.put(b"x")
    (message,) = queue.claim()
    version = ms.log("changes").schema()
    assert version is not None
    assert "`until` TIMESTAMP" in version.spark()
    assert [record.key for record in ms.log("changes").read()] == [
        f"orders:{message.claim_id}".encode()
    ] * 2
    with pytest.raises(InvalidInput, match="schema"):
        ms.log("changes").append({"queue": "orders"})


def test_several_queues_share_a_log(ms: Millstream) -> None:
    for name in ("a", "b"):
        queue = ms.create_queue(name, changes="changes")
        queue.put(b"x")
        queue.pop()
    assert [change.queue for change in changes(ms)] == ["a"] * 3 + ["b"] * 3


def test_changes_are_noted_from_the_alteration_on(ms: Millstream) -> None:
    queue = ms.create_queue("orders")
    queue.put_many([b"a", b"b", b"c"])
    first, second = queue.claim(2)
    queue.alter(changes="changes")
    queue.ack(first)
    queue.alter(changes="")
    queue.ack(second)
    assert [(each.change, each.message) for each in changes(ms)] == [("done", first.claim_id)]


def test_a_transaction_that_fails_leaves_no_record(ms: Millstream) -> None:
    queue = ms.create_queue("orders", changes="changes")
    queue.put(b"y")
    (message,) = queue.claim()
    run = [(message.claim_id, 1, 1)]
    failing = Transact([FinishClaims("orders", run, "ack"), FinishClaims("missing", run, "ack")])
    with pytest.raises(NotFound):
        ms.session.execute(failing)
    assert names(ms) == ["put", "claimed"]
    with ms.transaction() as tx:
        tx.ack(message)
        tx.append("other", b"z")
    assert names(ms) == ["put", "claimed", "done"]


def test_a_log_that_takes_no_record_refuses_the_operation(ms: Millstream) -> None:
    queue = ms.create_queue("orders", changes="changes")
    queue.put(b"x")
    ms.log("changes").set_schema({"type": "object", "required": ["no"]}, force=True)
    with pytest.raises(Conflict, match="keeps its changes in log 'changes'"):
        queue.claim()
    assert queue.info().in_flight == 0
    ms.create_queue("other", changes="others").put(b"x")
    Probe(ms).upkeep()  # the background goes on with the other queues
    assert [change.queue for change in changes(ms, "others")] == ["other"]
    queue.alter(changes="")
    ms.log("changes").delete()
    queue.alter(changes="changes")
    assert len(queue.claim()) == 1
    assert names(ms) == ["put", "claimed"]
    assert ms.log("changes").schema() is not None


def test_a_log_of_changes_in_use_is_not_deleted(ms: Millstream) -> None:
    queue = ms.create_queue("orders", changes="changes")
    other = ms.create_queue("returns", changes="changes")
    queue.put(b"x")
    assert len(queue.claim()) == 1
    log = ms.log("changes")
    log.cursor("report").ack(0)
    with pytest.raises(Conflict, match="'orders' and 1 more keeps its changes in log 'changes'"):
        log.delete()
    assert names(ms) == ["put", "claimed"]
    assert log.cursor("report").position() == 1
    with pytest.raises(Conflict, match="was not deleted"):
        ms.session.execute(Transact([DeleteLog("changes")]))
    queue.alter(changes="")
    with pytest.raises(Conflict, match="'returns' keeps"):
        log.delete()
    assert other.delete()
    assert log.delete()
    assert "changes" not in [each.name for each in ms.logs()]
    queue.put(b"y")
    assert "changes" not in [each.name for each in ms.logs()]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"changes": "queue:orders"}, "a log of its own"),
        ({"changes": "x", "dead_letter": "x"}, "a log of its own"),
        ({"changes": "x", "sources": ["x"]}, "one of its own sources"),
        ({"changes": "parts"}, "has partitions"),
        ({"changes": "typed"}, "required"),
    ],
)
def test_a_log_that_cannot_take_changes_is_refused(
    ms: Millstream, settings: dict[str, Any], text: str
) -> None:
    ms.log("parts", partitions=2).append(b"x")
    ms.log(
        "typed",
        schema={"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
    )
    with pytest.raises(InvalidInput, match=text):
        ms.create_queue("orders", **settings)
    assert not ms.queue("orders").exists()
