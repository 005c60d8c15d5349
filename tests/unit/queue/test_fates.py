"""What became of a message, by the id that putting it returned."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from millstream import Millstream
from millstream.errors import InvalidInput, NotFound
from millstream.queue.rules import locating, lookup
from millstream.queue.service import message_fate, peek
from millstream.record import moment
from millstream.testing import SimulatedClock

from .conftest import Reopen, fold_all, settle, upkeep


def test_a_message_is_followed_from_put_to_done(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", lease=10, backoff=5, max_attempts=3)
    other, id = queue.put(b"other"), queue.put(b"x")
    assert queue.message(id).state == "available"
    _, message = queue.claim(2)
    fate = queue.message(id)
    assert (fate.state, fate.claim_id, fate.attempts) == ("in_flight", message.claim_id, 1)
    assert fate.until == message.until
    queue.nack(message, reason="busy")
    fate = queue.message(id)
    assert (fate.state, fate.attempts, fate.reason) == ("delayed", 1, "busy")
    assert fate.until == moment(clock.wall_ms()) + timedelta(seconds=5)
    clock.advance(5)
    assert queue.message(id).state == "available"
    (message,) = queue.claim(1)
    queue.ack(message)
    assert (queue.message(id).state, queue.message(id).attempts) == ("done", 2)
    assert queue.message(other).state == "in_flight"


def test_a_failed_message_says_why_and_a_redriven_one_is_found_again(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    ids = queue.put_many([b"a", b"b"])
    assert ids == range(2)
    queue.fail(queue.claim(2)[1], reason="no address")
    fate = queue.message(ids[1])
    assert (fate.state, fate.reason, fate.attempts) == ("failed", "no address", 1)
    queue.redrive()
    again = queue.message(ids[1])
    assert again.state == "available"
    assert again.claim_id != fate.claim_id
    assert queue.message(ids[0]).state == "in_flight"


def test_messages_for_later_have_ids_of_their_own(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q")
    now = queue.put(b"now")
    due = moment(clock.wall_ms()) + timedelta(seconds=20)
    soon, at = queue.put(b"soon", delay=10), queue.put_many([b"1", b"2"], at=due)
    with ms.transaction() as tx:
        last = tx.put(queue, b"last", delay=30)
        plain = tx.put(queue, b"plain")
    ids = [now, soon, *at, last.result, plain.result]
    assert len(set(ids)) == 6
    assert [queue.message(id).state for id in ids] == ["available", *["delayed"] * 4, "available"]
    assert queue.message(at[1]).until == due
    clock.advance(20)
    assert [queue.message(id).state for id in ids] == [*["available"] * 4, "delayed", "available"]
    queue.ack(queue.claim(9))
    assert [queue.message(id).state for id in ids] == [*["done"] * 4, "delayed", "done"]


def test_a_delay_of_the_queue_counts(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", delay=10)
    id = queue.put(b"x")
    assert queue.message(id).state == "delayed"
    assert queue.message(id).until == moment(clock.wall_ms()) + timedelta(seconds=10)
    clock.advance(10)
    assert queue.message(id).state == "available"


def test_a_lease_that_ended_is_told_once_it_was_taken_back(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("q", lease=10, max_attempts=1)
    id = queue.put(b"x")
    queue.claim()
    clock.advance(11)
    settle(queue)
    assert (queue.message(id).state, queue.message(id).reason) == ("failed", "lease expired")


def test_what_is_not_there_is_unknown(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", dedup_by="id")
    first, repeat = queue.put(b"x", dedup="a"), queue.put(b"x", dedup="a")
    assert queue.message(repeat).state == "unknown"
    queue.claim()
    for id in (repeat, 99, 2**52, 2**52 + 7, 2**63 - 1):
        assert queue.message(id).state == "unknown"
    assert queue.message(first).state == "in_flight"
    purged = queue.put(b"y")
    queue.peek()
    queue.purge()
    assert queue.message(purged).state == "unknown"
    with pytest.raises(NotFound):
        ms.queue("none").message(0)


@pytest.mark.embedded
def test_what_is_done_is_known_until_it_is_forgotten(reopen: Reopen, clock: SimulatedClock) -> None:
    ms = reopen()
    queue = ms.create_queue("q", done_retention=60, bucket_exponent=0)
    id = queue.put(b"x")
    queue.ack(queue.claim())
    ms = reopen()
    queue = ms.queue("q")
    assert queue.message(id).state == "done"
    clock.advance(10_000)
    upkeep(ms)
    queue.put(b"y")
    queue.ack(queue.claim())
    upkeep(ms)
    assert queue.message(id).state in ("done", "unknown")


@pytest.mark.parametrize("id", [-1, "0", None, 1.5, True, 2**63])
def test_what_is_no_id_is_refused(ms: Millstream, id: Any) -> None:
    queue = ms.create_queue("q")
    queue.put(b"x")
    with pytest.raises(InvalidInput):
        queue.message(id)


@pytest.mark.embedded
def test_the_search_goes_on_over_many_buckets_and_rows(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (message_fate, peek):
        monkeypatch.setattr(module, "BUCKETS_PER_LOOK", 2)
    monkeypatch.setattr(lookup, "ROWS_PER_STEP", 3)
    queue = ms.create_queue("q", bucket_exponent=0)
    ids = queue.put_many([b"%d" % n for n in range(12)])
    later = queue.put_many([b"%d" % n for n in range(10)], delay=5)
    queue.ack(queue.claim(9))
    found = [queue.message(id).state for id in (*ids, *later)]
    assert found == [*["done"] * 9, *["available"] * 3, *["delayed"] * 10]


@pytest.mark.embedded
@pytest.mark.parametrize("how", [{}, {"priority_by": "p"}, {"group_by": "g"}])
def test_a_message_is_found_without_reading_all_buckets(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    queue = ms.create_queue("q", bucket_exponent=1, **how)
    ids: list[int] = []
    for _ in range(200):
        headers = [{"p": n % 3, "g": f"g{n % 7}"} for n in range(10)]
        ids += queue.put_many([b"x"] * 10, headers=headers)
        while messages := queue.claim(10):
            queue.ack(messages)
    fold_all(ms)
    read: list[int] = []
    find_bucket = lookup.find_bucket

    def counted(view: Any, state: Any, bucket_id: int) -> Any:
        read.append(bucket_id)
        return find_bucket(view, state, bucket_id)

    for module in (locating, message_fate):
        monkeypatch.setattr(module, "find_bucket", counted)
    for id in ids[::97]:
        read.clear()
        assert queue.message(id).state == "done"
        assert len(set(read)) <= 50  # of 200
    read.clear()
    assert [fate.state for fate in queue.messages(ids[-3:])] == ["done"] * 3
    assert len(set(read)) <= 70
