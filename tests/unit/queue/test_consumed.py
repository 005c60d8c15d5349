"""Retention by *consumed* counts queues and durable cursors alike."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Millstream
from tests.unit.queue.conftest import Reopen, fold_all, values

SPECS: dict[str, dict[str, Any]] = {
    "by name": {"sources": "events"},
    "by a pattern": {"sources": "ev*"},
    "by priority": {"sources": "events", "priority_by": "p"},
    "lossy": {"sources": "events", "lossy": True},
}


def start_after(ms: Millstream, log: str = "events") -> int:
    """Where a log starts once its retention was enforced."""
    ms.log(log).enforce_retention()
    return ms.log(log).start_offset()


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_what_the_only_queue_has_finished_is_forgotten(
    ms: Millstream, spec: dict[str, Any]
) -> None:
    log = ms.log("events")
    log.append_many([b"x"] * 10)
    log.retain(consumed=True)
    assert start_after(ms) == 0  # nobody reads it: everything stays
    queue = ms.create_queue("q", start="earliest", **spec)
    assert start_after(ms) == 0

    first, second, third = queue.claim(3)
    assert start_after(ms) == 0
    queue.ack([second, third])
    assert start_after(ms) == 0
    queue.ack(first)
    assert start_after(ms) == 3
    queue.ack(queue.claim(100))
    assert start_after(ms) == 10
    log.append(b"y")
    assert start_after(ms) == 10
    assert values(queue.claim()) == [b"y"]


def test_every_queue_and_cursor_counts(ms: Millstream) -> None:
    log = ms.log("events")
    log.append_many([b"x"] * 10)
    log.retain(consumed=True)
    one = ms.create_queue("one", sources="events", start="earliest")
    two = ms.create_queue("two", sources="e*", start="earliest")
    cursor = log.cursor("c")
    one.ack(one.claim(10))
    assert start_after(ms) == 0
    cursor.ack_up_to(7)
    assert start_after(ms) == 0
    two.ack(two.claim(5))
    assert start_after(ms) == 5
    assert two.delete()
    assert start_after(ms) == 7
    cursor.delete()
    assert start_after(ms) == 10


def test_a_retry_holds_its_log_and_a_failed_message_does_not(ms: Millstream) -> None:
    log = ms.log("events")
    log.append_many([b"a", b"b", b"c"])
    log.retain(consumed=True)
    queue = ms.create_queue("q", sources="events", start="earliest", backoff=60)
    bad, again, good = queue.claim(3)
    queue.fail(bad)
    queue.nack(again)
    queue.ack(good)
    assert start_after(ms) == 1
    queue.redrive()
    assert values(queue.claim()) == [b"a"]  # the queue has kept it


def test_what_a_queue_does_not_take_is_passed(ms: Millstream) -> None:
    log = ms.log("events")
    log.append_many([b"x"] * 4, headers=[{"n": n} for n in range(4)])
    log.retain(consumed=True)
    queue = ms.create_queue("q", sources="events", start="earliest", filter="n = 2")
    (one,) = queue.claim(10)
    assert start_after(ms) == 2
    queue.ack(one)
    assert queue.claim(10) == []
    assert start_after(ms) == 4


def test_a_queue_that_begins_at_the_end_holds_nothing_before(ms: Millstream) -> None:
    log = ms.log("events")
    log.append_many([b"x"] * 4)
    log.retain(consumed=True)
    ms.create_queue("q", sources="events")
    assert start_after(ms) == 4


def test_a_queue_on_another_log_counts_for_nothing(ms: Millstream) -> None:
    log = ms.log("events")
    log.append_many([b"x"] * 4)
    log.retain(consumed=True)
    queue = ms.create_queue("q", sources="other")
    queue.put(b"y")
    queue.ack(queue.claim())
    assert start_after(ms) == 0


def test_a_queue_that_no_longer_takes_from_a_log_holds_only_what_it_has_begun(
    ms: Millstream,
) -> None:
    log = ms.log("events")
    log.append_many([b"x"] * 6)
    log.retain(consumed=True)
    queue = ms.create_queue("q", sources="events", start="earliest", bucket_exponent=0)
    held = queue.claim(2)
    ms.create_queue("q", sources="other", start="earliest", bucket_exponent=0)
    log.cursor("c").ack_up_to(6)
    assert start_after(ms) == 0
    queue.ack(held)
    queue.ack(queue.claim(10))
    assert start_after(ms) == 6


def test_an_inbox_is_consumed_by_its_queue(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    queue.put_many([b"x"] * 4)
    ms.log("queue:q").retain(consumed=True)
    held = queue.claim(2)
    assert start_after(ms, "queue:q") == 0
    queue.ack(held)
    assert start_after(ms, "queue:q") == 2
    second = ms.create_queue("second", sources="queue:q", start="earliest")
    queue.ack(queue.claim(2))
    assert start_after(ms, "queue:q") in (2, 4)  # what is done is cut off an inbox by itself
    assert values(second.claim(10)) == [b"x"] * 2


def test_what_a_queue_has_finished_is_known_after_reopening(reopen: Reopen) -> None:
    ms = reopen()
    ms.log("events").append_many([b"x"] * 6)
    ms.log("events").retain(consumed=True)
    queue = ms.create_queue("q", sources="events", start="earliest")
    queue.ack(queue.claim(4))
    fold_all(ms)
    assert start_after(reopen()) == 4
