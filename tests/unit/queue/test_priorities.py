"""Priorities: the higher first, but a level is worth only so much waiting."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from millstream import Millstream
from millstream.errors import Conflict, InvalidInput
from millstream.queue.commands import ClaimRouted
from millstream.queue.rules.claims import Claiming, place_routed
from millstream.queue.service.backlog import need_facts
from millstream.queue.service.router import route
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, fold_all, upkeep, values


@pytest.fixture
def queue(ms: Millstream) -> Queue:
    return ms.queue("jobs", priority_by="p", priority_step=60, bucket_exponent=1, backoff=0)


def test_the_higher_goes_first_and_equals_go_in_order(queue: Queue) -> None:
    for value, priority in ((b"a", 0), (b"b", 5), (b"c", 9), (b"d", 5), (b"e", 0)):
        queue.put(value, priority=priority)
    assert values(queue.claim(5)) == [b"c", b"b", b"d", b"a", b"e"]


def test_messages_that_lie_apart_in_their_log_are_whole(queue: Queue, ms: Millstream) -> None:
    log = ms.log("orders")
    queue.alter(sources="orders", max_attempts=3)
    for n in range(0, 40, 2):
        log.append_many(
            [b"%d" % n, b"%d" % (n + 1)],
            keys=[f"k{n}", None],
            headers=[{"p": n % 3, "n": n}, {"p": (n + 1) % 3, "n": n + 1}],
        )
    claimed = queue.claim(40)
    assert values(claimed) == [b"%d" % n for n in sorted(range(40), key=lambda n: -(n % 3))]
    for message in claimed:
        n = int(message.text)
        assert (message.offset, message.log, message.headers["n"]) == (n, "orders", n)
        assert message.key == (f"k{n}".encode() if n % 2 == 0 else None)
    queue.nack(claimed[5:8])
    again = queue.claim(40)
    assert sorted(values(again)) == sorted(values(claimed[5:8]))
    assert [message.attempt for message in again] == [2, 2, 2]
    queue.ack([*claimed[:5], *claimed[8:], *again])
    assert counts(queue)["done"] == 40


@pytest.mark.parametrize("pops", [True, False])
def test_a_lane_of_messages_that_lie_apart_is_claimed_in_one_go(
    ms: Millstream, *, pops: bool
) -> None:
    queue = ms.queue("lanes", sources="orders", start="earliest", priority_by="p", backoff=0)
    log = ms.log("orders")
    for first in range(0, 60, 20):
        numbers = range(first, first + 20)
        log.append_many([b"%d" % n for n in numbers], headers=[{"p": n % 3} for n in numbers])
    expected = [n for n in range(60) if n % 3 == 2]
    claimed = queue.pop(20) if pops else queue.claim(20)
    assert [int(message.text) for message in claimed] == expected
    assert [message.offset for message in claimed] == expected
    if not pops:
        queue.nack(claimed[3:9])
        again = queue.claim(6)
        assert values(again) == values(claimed[3:9])
        assert [message.attempt for message in again] == [2] * 6
        queue.ack([*claimed[:3], *claimed[9:], *again])
    assert counts(queue)["done"] == 20


def test_the_best_may_be_the_last_of_many(queue: Queue) -> None:
    queue.put_many([b"%d" % n for n in range(3_000)])
    queue.put(b"urgent", priority=1)
    assert values(queue.claim(2)) == [b"urgent", b"0"]


def test_a_later_one_of_more_priority_overtakes_between_claims(queue: Queue) -> None:
    queue.put_many([b"a", b"b"])
    assert values(queue.claim()) == [b"a"]
    queue.put(b"urgent", priority=3)
    assert values(queue.claim(2)) == [b"urgent", b"b"]


@pytest.mark.parametrize(
    ("waited_s", "expected"),
    [(119, [b"high", b"low"]), (121, [b"low", b"high"])],
)
def test_a_level_is_worth_one_step_of_waiting(
    queue: Queue, clock: SimulatedClock, waited_s: int, expected: list[bytes]
) -> None:
    queue.put(b"low", priority=1)
    clock.advance(waited_s)
    queue.put(b"high", priority=3)
    assert values(queue.claim(2)) == expected


def test_a_message_with_the_same_rank_that_came_first_goes_first(
    queue: Queue, clock: SimulatedClock
) -> None:
    queue.put(b"low")
    clock.advance(60)
    queue.put(b"high", priority=1)
    assert values(queue.claim(2)) == [b"low", b"high"]


def test_a_priority_is_clamped_and_what_is_no_integer_is_none(queue: Queue) -> None:
    odd = {b"text": "9", b"true": True, b"float": 5.0, b"below": -3, b"none": None}
    for value, priority in odd.items():
        queue.put(value, headers={"p": priority})
    queue.put(b"plain")
    queue.put(b"above", headers={"p": 99})
    queue.put(b"nine", headers={"p": 9})
    found = values(queue.claim(10))
    assert found == [b"above", b"nine", *odd, b"plain"]


@pytest.mark.parametrize("priority", [-1, 10])
def test_a_wish_for_a_priority_that_there_is_not_is_refused(queue: Queue, priority: int) -> None:
    with pytest.raises(InvalidInput):
        queue.put(b"a", priority=priority)


def test_a_wish_for_a_priority_of_another_type_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidInput):
        queue.put(b"a", priority="high")  # type: ignore[arg-type]


def test_a_wish_needs_a_queue_that_looks_at_it(ms: Millstream) -> None:
    queue = ms.queue("plain", lease=10)
    for wish in ({"priority": 1}, {"group": "a"}, {"dedup": "a"}):
        with pytest.raises(InvalidInput):
            queue.put(b"a", **wish)


def test_a_priority_in_the_key_is_refused_or_works(ms: Millstream) -> None:
    try:
        queue = ms.queue("keyed", priority_by="_key")
        queue.put(b"low", priority=0)
        queue.put(b"high", priority=9)
    except InvalidInput:
        return
    assert values(queue.claim(2)) == [b"high", b"low"]


def test_a_retry_keeps_its_rank(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"high", priority=5)
    clock.advance(1)
    queue.put_many([b"a", b"b"])
    queue.nack(queue.claim(), delay=10)
    assert values(queue.claim()) == [b"a"]
    clock.advance(10)
    assert values(queue.claim(2)) == [b"high", b"b"]


def test_a_retry_goes_before_what_came_later_in_the_same_millisecond(queue: Queue) -> None:
    queue.put_many([b"a", b"b"])
    queue.nack(queue.claim(), delay=0)
    assert values(queue.claim(2)) == [b"a", b"b"]


def test_what_waits_in_several_logs_goes_by_rank(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", sources="l.*", priority_by="p", priority_step=60)
    ms.log("l.a")
    ms.log("l.b").append(b"old")
    clock.advance(50)
    ms.log("l.a").append(b"new")
    clock.advance(20)
    ms.log("l.a").append(b"high", headers={"p": 1})
    assert values(queue.claim(3)) == [b"old", b"high", b"new"]


def test_delayed_messages_keep_their_priority(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a", delay=5)
    queue.put(b"high", priority=9, delay=5)
    queue.put(b"at", priority=5, at=clock.wall_ms() + 5_000)
    queue.put(b"day", priority=4, at=datetime.fromtimestamp(clock.wall_ms() / 1000 + 5, tz=UTC))
    assert counts(queue) == {"delayed": 4}
    clock.advance(4)
    queue.put(b"now")
    assert values(queue.claim(5)) == [b"now"]
    clock.advance(1)
    assert values(queue.claim(5)) == [b"high", b"at", b"day", b"a"]


def test_the_best_of_many_that_are_due_at_once_goes_first(
    queue: Queue, clock: SimulatedClock
) -> None:
    queue.put_many([b"%d" % n for n in range(150)], delay=1)
    queue.put(b"urgent", priority=9, delay=1)
    clock.advance(1)
    assert values(queue.claim()) == [b"urgent"]


def test_a_redriven_message_keeps_its_priority(queue: Queue) -> None:
    queue.put(b"high", priority=7)
    queue.fail(queue.claim())
    queue.put(b"low", priority=1)
    queue.put(b"higher", priority=8)
    assert queue.redrive() == 1
    assert values(queue.claim(5)) == [b"higher", b"high", b"low"]


def test_a_redriven_message_of_a_delayed_one_keeps_its_priority(
    queue: Queue, clock: SimulatedClock
) -> None:
    queue.put(b"high", priority=7, delay=1)
    clock.advance(1)
    queue.fail(queue.claim())
    queue.put(b"low", priority=6)
    queue.redrive(rate=1_000)
    assert values(queue.claim(5)) == [b"high", b"low"]


def test_what_failed_can_be_redriven_after_the_queue_lost_its_priorities(queue: Queue) -> None:
    queue.put(b"a", priority=5)
    queue.fail(queue.claim())
    queue.alter(priority_by="")
    assert queue.redrive() == 1
    assert values(queue.claim()) == [b"a"]


def test_priorities_survive_folding_and_opening_again(reopen: Reopen) -> None:
    ms = reopen()
    queue = ms.queue("jobs", priority_by="p", bucket_exponent=0, backoff=0)
    for n in range(20):
        queue.put(b"%d" % n, priority=n % 10)
    first = values(queue.claim(3))
    queue.nack(queue.claim(2), delay=0)
    fold_all(ms)
    queue = reopen().queue("jobs")
    assert counts(queue) == {"available": 17, "in_flight": 3}
    rest = values(queue.claim(20))
    levels = [int(value) % 10 for value in first + rest]
    assert levels == sorted(levels, reverse=True)
    assert len({*first, *rest}) == 20


def test_purge_peek_and_pause_see_every_lane(queue: Queue) -> None:
    for n in range(10):
        queue.put(b"%d" % n, priority=n)
    queue.put(b"later", priority=3, delay=60)
    held = queue.claim(2)
    assert len(queue.peek(20)) == 8
    assert values(queue.peek(20, state="delayed")) == [b"later"]
    queue.pause()
    assert queue.claim(5) == []
    assert queue.purge() == 9
    queue.resume()
    assert queue.claim(5) == []
    queue.nack(held, delay=0)
    assert values(queue.claim(5)) == [b"9", b"8"]


def test_a_queue_in_use_keeps_its_header(queue: Queue) -> None:
    queue.put(b"a", priority=1)
    queue.peek()
    with pytest.raises(Conflict):
        queue.alter(priority_by="other")
    held = queue.claim()
    with pytest.raises(Conflict):
        queue.alter(priority_by="")
    queue.ack(held)
    queue.alter(priority_by="other")
    queue.put(b"a", headers={"p": 9})
    queue.put(b"b", headers={"other": 1})
    assert values(queue.claim(2)) == [b"b", b"a"]


def test_what_was_done_long_ago_is_forgotten_in_every_lane(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", priority_by="p", bucket_exponent=1, done_retention=10)
    for priority in range(4):
        queue.put(b"one", priority=priority)
    queue.put_many([b"many"] * 40, headers=[{"p": 5}] * 40)
    queue.ack(queue.claim(44))
    clock.advance(11)
    upkeep(ms)
    assert counts(queue) == {}


@pytest.mark.embedded
def test_a_claim_that_was_overtaken_in_routing_grants_nothing_less_than_the_best(
    ms: Millstream,
) -> None:
    queue = ms.queue("jobs", sources="a", priority_by="p")
    ms.log("a").append(b"low")
    store = Probe(ms).store
    early = route(store, need_facts(store, "jobs"), 0)
    ms.log("a").append(b"high", headers={"p": 9})
    late = route(store, need_facts(store, "jobs"), 0)
    store.run(lambda tx: place_routed(tx, "jobs", early))
    granted = store.run(Claiming(ClaimRouted("jobs", 1, None, "", late, [])))
    assert (granted.grants, granted.is_overtaken) == ([], True)
    assert values(queue.claim(2)) == [b"high", b"low"]
