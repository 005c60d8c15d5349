"""Transactions carry all that queues do: put with every wish, and each end of an attempt."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream import Item, Millstream, Producer, Transaction
from millstream.errors import Conflict, InvalidInput, LeaseLost, NotFound, TooLarge
from millstream.limits import Limits
from millstream.record import moment
from millstream.testing import SimulatedClock

from .conftest import Reopen, counts, values

Step = Callable[[Transaction], object]


def transact(ms: Millstream, step: Step) -> None:
    """A transaction of two steps."""
    with ms.transaction() as tx:
        tx.append("x", b"undone")
        step(tx)


def breaking(tx: Transaction) -> None:
    tx.put("q", b"never", delay=1)
    raise ZeroDivisionError


FULL = {"priority_by": "p", "group_by": "tenant", "group_in_flight": 0, "dedup_by": "id"}


def test_a_put_goes_where_the_queue_looks_for_what_is_wished(ms: Millstream) -> None:
    queue = ms.create_queue("q", **FULL)
    with ms.transaction() as tx:
        low = tx.put(queue, {"n": 1}, key="k", headers={"h": 1})
        high = tx.put("q", {"n": 2}, priority=5, group="ada", dedup="a")
        tx.put("q", {"n": 3}, dedup="a")

    assert (low.result, high.result) == (0, 1)
    first, second = queue.claim(9)
    assert (first.json(), dict(first.headers)) == (
        {"n": 2},
        {"p": 5, "tenant": "ada", "id": "a", "content-type": "application/json"},
    )
    assert (second.json(), second.key, second.headers["h"]) == ({"n": 1}, b"k", 1)


def test_a_wish_replaces_the_header_that_the_queue_reads(ms: Millstream) -> None:
    queue = ms.create_queue("q", priority_by="p")
    queue.put(b"a", headers={"p": 1, "x": "y"}, priority=7)
    (message,) = queue.claim()
    assert dict(message.headers) == {"p": 7, "x": "y"}


def test_the_key_is_the_group_if_the_queue_says_so(ms: Millstream) -> None:
    queue = ms.create_queue("q", group_by="_key")
    with ms.transaction() as tx:
        tx.put(queue, b"a", group="ada")
        tx.put(queue, b"b", group="ada", key=b"ada")
    (message,) = queue.claim(9)
    assert message.key == b"ada"
    with pytest.raises(InvalidInput, match="the key of a message is its group"):
        queue.put(b"c", group="ada", key="bob")


def test_a_put_for_later_waits_and_is_part_of_the_transaction(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("q", **FULL)
    queue.put(b"now", group="ada")
    due = moment(clock.wall_ms()) + timedelta(seconds=20)
    with ms.transaction() as tx:
        tx.put(queue, b"soon", delay=10, group="ada", priority=3)
        tx.put_many(queue, [b"at", b"at too"], at=due)
        tx.put_many(queue, [], delay=5)
    assert counts(queue)["delayed"] == 3
    assert values(queue.claim(9)) == [b"now"]
    clock.advance(10)
    (message,) = queue.claim(9)
    assert (message.value, message.headers["p"]) == (b"soon", 3)
    clock.advance(10)
    assert values(queue.claim(9)) == [b"at", b"at too"]

    with pytest.raises(ZeroDivisionError):
        transact(ms, breaking)
    assert "delayed" not in counts(queue)


def test_a_put_for_later_comes_behind_what_was_put_before(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("q", group_by="g")
    queue.put(b"0", group="ada")
    with ms.transaction() as tx:
        tx.put(queue, b"1", group="ada", delay=1)
    queue.put(b"2", group="ada")
    clock.advance(5)
    taken = []
    while found := queue.claim(9):
        taken += values(found)
        queue.ack(found)
    assert taken == [b"0", b"1", b"2"]


def test_a_repeat_for_later_is_one_of_what_was_put_before(ms: Millstream) -> None:
    queue = ms.create_queue("q", dedup_by="id")
    queue.put(b"first", dedup="a")
    with ms.transaction() as tx:
        tx.put(queue, b"again", dedup="a", delay=0)
    assert values(queue.claim(9)) == [b"first"]


def test_items_of_a_batch_for_later_keep_their_headers(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("q", priority_by="p")
    items = [Item(b"low", headers={"p": 1}), Item(b"high", key="k", headers={"p": 9})]
    with ms.transaction() as tx:
        tx.put_many(queue, items, delay=1)
    clock.advance(1)
    assert values(queue.claim(9)) == [b"high", b"low"]


@pytest.mark.parametrize(
    "wishes",
    [
        {"priority": 10},
        {"priority": -1},
        {"priority": True},
        {"priority": "5"},
        {"priority": 1.0},
        {"group": 5},
        {"group": b"ada"},
        {"group": "\ud800"},
        {"dedup": 7},
        {"delay": -1},
        {"delay": "5"},
        {"delay": float("nan")},
        {"delay": 1e12},
        {"at": -1},
        {"at": "tomorrow"},
        {"at": datetime(2030, 1, 1)},
        {"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"headers": {"x": {}}},
    ],
    ids=str,
)
def test_a_put_of_what_no_queue_can_read_is_refused(ms: Millstream, wishes: dict[str, Any]) -> None:
    queue = ms.create_queue("q", **FULL)
    with pytest.raises(InvalidInput):
        queue.put(b"x", **wishes)
    with pytest.raises(InvalidInput):
        transact(ms, lambda tx: tx.put(queue, b"x", **wishes))
    assert (counts(queue), len(ms.log("x"))) == ({}, 0)


@pytest.mark.parametrize("wish", ["priority", "group", "dedup"])
def test_a_wish_that_the_queue_does_not_look_at_undoes_the_transaction(
    ms: Millstream, wish: str
) -> None:
    queue = ms.create_queue("q")
    value: Any = 1 if wish == "priority" else "x"
    with pytest.raises(InvalidInput, match=f"does not look at a {wish}.*{wish}_by"):
        transact(ms, lambda tx: tx.put(queue, b"x", **{wish: value}))
    assert (counts(queue), len(ms.log("x"))) == ({}, 0)


def test_a_put_to_no_queue_undoes_the_transaction(ms: Millstream) -> None:
    wishes: dict[str, Any]
    for wishes in ({}, {"delay": 1}, {"priority": 1}):
        with pytest.raises(NotFound, match="there is no queue 'none'"):
            transact(ms, lambda tx, wishes=wishes: tx.put("none", b"x", **wishes))
    assert len(ms.log("x")) == 0


def test_headers_that_grow_too_large_by_a_wish_are_refused(reopen: Reopen) -> None:
    ms = reopen(limits=Limits(headers_bytes_max=20))
    queue = ms.create_queue("q", group_by="tenant")
    with pytest.raises(TooLarge):
        queue.put(b"x", group="x" * 30)
    assert counts(queue) == {}


def test_a_producers_repeat_of_a_wished_put_is_stored_once(ms: Millstream) -> None:
    queue = ms.create_queue("q", priority_by="p")
    for _ in range(2):
        with ms.transaction() as tx:
            put = tx.put(queue, b"x", priority=1, producer=Producer("p", 0))
        assert put.result == 0
    assert len(queue.claim(9)) == 1


# Ends of attempts.


def test_attempts_end_in_a_transaction_as_they_do_alone(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("q", lease=10)
    queue.put_many([b"done", b"again", b"broken", b"long"])
    done, again, broken, long = queue.claim(4)
    with ms.transaction() as tx:
        ended = tx.ack(done)
        tx.nack([again], delay=5, reason="not yet")
        tx.fail(broken, reason="bad")
        renewed = tx.renew(long, lease=60)
        tx.append("out", b"x")

    assert (ended.done, ended.result) == (True, None)
    assert renewed.result == moment(clock.wall_ms()) + timedelta(seconds=60)
    assert counts(queue) == {"delayed": 1, "in_flight": 1, "done": 1, "failed": 1}
    assert [one.reason for one in queue.failed()] == ["bad"]
    assert [one.reason for one in queue.attempts(again)] == ["not yet"]
    clock.advance(30)
    assert values(queue.claim(9)) == [b"again"]


@pytest.mark.parametrize("end", ["ack", "nack", "fail", "renew"])
def test_a_lost_lease_undoes_the_transaction(
    ms: Millstream, clock: SimulatedClock, end: str
) -> None:
    queue = ms.create_queue("q", lease=10)
    queue.put(b"x")
    (message,) = queue.claim()
    clock.advance(11)
    queue.claim()
    with pytest.raises(LeaseLost):
        transact(ms, lambda tx: getattr(tx, end)(message))
    assert len(ms.log("x")) == 0


@pytest.mark.parametrize("end", ["ack", "nack", "fail", "renew"])
@pytest.mark.parametrize("given", [7, None, "text", [7], [None], b"x", {"a": 1}], ids=repr)
def test_what_is_no_message_is_refused_by_name(ms: Millstream, end: str, given: Any) -> None:
    queue = ms.create_queue("q")
    with pytest.raises(InvalidInput, match="claimed message"):
        getattr(queue, end)(given)
    with pytest.raises(InvalidInput, match="claimed message"), ms.transaction() as tx:
        getattr(tx, end)(given)


@pytest.mark.parametrize("end", ["ack", "nack", "fail", "renew"])
def test_a_step_is_about_one_queue_and_none_about_no_message(ms: Millstream, end: str) -> None:
    one, other = ms.create_queue("one"), ms.create_queue("other")
    one.put(b"x")
    other.put(b"x")
    with ms.transaction() as tx:
        assert getattr(tx, end)([]).result is None
    held = one.claim() + other.claim()
    with pytest.raises(InvalidInput, match=r"\['one', 'other'\]"), ms.transaction() as tx:
        getattr(tx, end)(held)


def test_a_cursor_and_messages_are_acknowledged_by_the_same_verb(ms: Millstream) -> None:
    queue, log = ms.create_queue("q"), ms.log("x")
    queue.put(b"x")
    log.append_many([b"0", b"1"])
    cursor = log.cursor("c")
    with ms.transaction() as tx:
        tx.ack(queue.claim())
        floor = tx.ack(cursor, cursor.take(1))
    assert (floor.result, cursor.floor(), counts(queue)) == (1, 1, {"done": 1})
    for given in (queue, log, 7, None):
        with pytest.raises(InvalidInput, match=r"tx\.ack\(cursor, records\)"):
            transact(ms, lambda tx, given=given: tx.ack(given, [1]))
    with pytest.raises(InvalidInput):
        transact(ms, lambda tx: tx.ack(cursor))  # type: ignore[call-overload]


def test_a_transaction_that_has_ended_takes_no_more_steps(ms: Millstream) -> None:
    with ms.transaction() as tx:
        put = tx.append("x", b"0")
        with pytest.raises(RuntimeError, match="after the `with` block"):
            _ = put.result
    with pytest.raises(RuntimeError, match="has ended"):
        tx.append("x", b"1")
    never = []
    with pytest.raises(NotFound):
        transact(ms, lambda tx: never.append(tx.put("none", b"2")))
    with pytest.raises(RuntimeError, match="ended without an error"):
        _ = never[0].result
    assert len(ms.log("x")) == 1


def test_messages_of_a_queue_that_was_deleted_undo_the_transaction(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    queue.put(b"x")
    held = queue.claim()
    queue.delete()
    for end in ("ack", "nack", "fail", "renew"):
        with pytest.raises((NotFound, Conflict)):
            transact(ms, lambda tx, end=end: getattr(tx, end)(held))
    assert len(ms.log("x")) == 0
