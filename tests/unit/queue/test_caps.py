"""Caps: so many in flight, so many claims per second, of a queue and of a group."""

from __future__ import annotations

import pytest

from millstream import Millstream
from millstream.errors import InvalidInput
from millstream.queue.service.lines import glance
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, fold_all, values


def filled(ms: Millstream, **options: object) -> Queue:
    queue = ms.queue("jobs", backoff=0, **{"lease": 600, **options})  # type: ignore[arg-type]
    queue.put_many([b"%d" % n for n in range(50)], headers=[{"g": "a"}] * 50)
    return queue


def waits(ms: Millstream, most_s: float = 60.0) -> float:
    return min(most_s, glance(Probe(ms).store, "jobs")[1])


@pytest.mark.parametrize("options", [{}, {"priority_by": "p"}, {"group_by": "h"}])
def test_so_many_are_in_flight_and_no_more(ms: Millstream, options: dict[str, str]) -> None:
    queue = filled(ms, max_in_flight=3, **options)
    held = queue.claim(2)
    held += queue.claim(10)
    assert len(held) == 3
    assert queue.claim() == []
    queue.ack(held[0])
    queue.nack(held[1], delay=0)
    assert len(queue.claim(10)) == 2


def test_a_claim_that_acknowledges_makes_its_own_room(ms: Millstream) -> None:
    queue = filled(ms, max_in_flight=3)
    assert len(queue.claim(10, ack=queue.claim(3))) == 3
    assert counts(queue)["done"] == 3


def test_ended_leases_make_room(ms: Millstream, clock: SimulatedClock) -> None:
    queue = filled(ms, max_in_flight=3, lease=10)
    queue.claim(3)
    clock.advance(10)
    assert len(queue.claim(10)) == 3


def test_popped_messages_are_never_in_flight(ms: Millstream) -> None:
    queue = filled(ms, max_in_flight=3)
    assert [len(queue.pop(3)) for _ in range(3)] == [3, 3, 3]
    assert len(queue.claim(5)) == 3
    assert queue.pop() == []


def test_a_cap_can_be_altered_while_messages_are_in_flight(ms: Millstream) -> None:
    queue = filled(ms, max_in_flight=5)
    held = queue.claim(10)
    queue.alter(max_in_flight=2)
    queue.ack(held[0])
    assert queue.claim() == []
    queue.ack(held[1:4])
    assert len(queue.claim(10)) == 1
    queue.alter(max_in_flight=0)
    assert len(queue.claim(10)) == 10


@pytest.mark.parametrize("options", [{}, {"priority_by": "p"}, {"group_by": "h"}])
def test_a_rate_allows_a_second_at_once_and_then_its_pace(
    ms: Millstream, clock: SimulatedClock, options: dict[str, str]
) -> None:
    queue = filled(ms, rate=4, **options)
    found = [len(queue.claim(50))]
    for _ in range(8):
        clock.advance(0.125)
        found.append(len(queue.claim(50)))
    assert found == [4, 0, 1, 0, 1, 0, 1, 0, 1]
    clock.advance(100)
    assert len(queue.claim(50)) == 4


def test_a_rate_below_one_per_second_allows_one_at_once(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = filled(ms, rate=0.1)
    found = []
    for _ in range(25):
        found.append(len(queue.claim(50)))
        clock.advance(1)
    assert [second for second, count in enumerate(found) if count] == [0, 10, 20]
    assert sum(found) == 3


def test_retries_and_pops_are_paid_for_as_well(ms: Millstream, clock: SimulatedClock) -> None:
    queue = filled(ms, rate=2)
    queue.nack(queue.claim(1), delay=0)
    assert len(queue.pop(5)) == 1
    assert queue.claim(5) == []
    clock.advance(0.5)
    assert len(queue.claim(5)) == 1


def test_the_wall_clock_does_not_change_the_pace(ms: Millstream, clock: SimulatedClock) -> None:
    queue = filled(ms, rate=2)
    assert len(queue.claim(5)) == 2
    clock.jump(1_000)
    assert queue.claim(5) == []
    clock.jump(-5_000)
    clock.advance(1)
    assert len(queue.claim(5)) == 2


def test_a_rate_survives_folding_and_opening_again(reopen: Reopen, clock: SimulatedClock) -> None:
    ms = reopen()
    queue = filled(ms, rate=2, max_in_flight=3)
    assert len(queue.claim(5)) == 2
    fold_all(ms)
    queue = reopen().queue("jobs")
    assert queue.claim(5) == []
    clock.advance(5)
    assert len(queue.claim(5)) == 1


@pytest.mark.parametrize("in_flight", [0, 3])
def test_a_group_has_a_rate_of_its_own(
    ms: Millstream, clock: SimulatedClock, in_flight: int
) -> None:
    queue = ms.queue("jobs", group_by="g", group_in_flight=in_flight, group_rate=2, lease=600)
    for n in range(6):
        for group in "ab":
            queue.put(f"{group}{n}", group=group)
        queue.put(b"-")
    first = queue.claim(50)
    assert sorted(values(first)) == [b"-"] * 6 + [b"a0", b"a1", b"b0", b"b1"]
    queue.ack(first)
    clock.advance(0.4)
    assert queue.claim(50) == []
    clock.advance(0.2)
    assert sorted(values(queue.claim(50))) == [b"a2", b"b2"]


def test_an_ordered_group_has_a_rate_of_its_own(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", group_by="g", group_rate=0.5)
    for n in range(4):
        queue.put(b"%d" % n, group="a")
    found = []
    for second in range(7):
        some = queue.claim(5)
        queue.ack(some)
        found += [(second, value) for value in values(some)]
        clock.advance(1.001)
    assert found == [(0, b"0"), (2, b"1"), (4, b"2"), (6, b"3")]


def test_retries_of_an_ordered_group_are_paid_for(ms: Millstream) -> None:
    queue = ms.queue("jobs", group_by="g", group_rate=1)
    queue.put(b"a", group="a")
    queue.nack(queue.claim(), delay=0)
    assert queue.claim() == []


@pytest.mark.parametrize("in_flight", [0, 2])
def test_retries_of_other_groups_are_paid_for(ms: Millstream, in_flight: int) -> None:
    queue = ms.queue("jobs", group_by="g", group_rate=1, group_in_flight=in_flight)
    queue.put(b"a", group="a")
    queue.nack(queue.claim(), delay=0)
    assert queue.claim() == []


@pytest.mark.parametrize(
    "options",
    [
        {"rate": -1.0},
        {"rate": float("nan")},
        {"group_rate": float("inf")},
        {"max_in_flight": -1},
        {"group_in_flight": -1},
        {"dedup_window": 0},
        {"priority_step": 0},
    ],
)
def test_caps_that_make_no_sense_are_refused(ms: Millstream, options: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        ms.queue("jobs", **options)


@pytest.mark.parametrize("options", [{"rate": 1e-310}, {"group_rate": 1e-300, "group_by": "g"}])
def test_a_rate_too_small_for_any_clock_is_refused_or_works(
    ms: Millstream, options: dict[str, float]
) -> None:
    try:
        queue = ms.queue("jobs", **options)  # type: ignore[arg-type]
    except InvalidInput:
        return
    queue.put_many([b"a", b"b"], headers=[{"g": "x"}] * 2)
    assert values(queue.pop()) == [b"a"]
    assert queue.pop() == []


def test_who_waits_for_a_rate_wakes_when_it_allows(ms: Millstream) -> None:
    queue = filled(ms, rate=0.1)
    queue.claim()
    assert 9.9 < waits(ms) < 10.1
    assert waits(ms, 3.0) == 3.0


@pytest.mark.parametrize("cap", [{"max_in_flight": 1}, {"rate": 0.02}])
def test_who_waits_for_a_cap_does_not_spin_over_what_is_due(
    ms: Millstream, clock: SimulatedClock, cap: dict[str, float]
) -> None:
    queue = filled(ms, **cap)
    queue.nack(queue.claim(), delay=2)
    queue.claim()
    clock.advance(3)
    assert waits(ms) > 1


def test_a_burst_is_how_many_may_be_claimed_at_once(ms: Millstream, clock: SimulatedClock) -> None:
    small = ms.create_queue("small", rate=10, burst=2)
    large = ms.create_queue("large", rate=10, burst=30)
    for queue in (small, large):
        queue.put_many(range(100))
    assert [len(small.claim(50)), len(large.claim(50))] == [2, 30]
    clock.advance(0.1)
    assert [len(small.claim(50)), len(large.claim(50))] == [1, 1]
    clock.advance(60)
    assert [len(small.claim(50)), len(large.claim(50))] == [2, 30]


def test_a_group_has_a_burst_of_its_own(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", group_by="g", group_in_flight=0, group_rate=1, group_burst=3)
    queue.put_many(range(20), headers=[{"g": "ab"[number % 2]} for number in range(20)])
    assert len(queue.claim(50)) == 6
    clock.advance(1.01)
    assert len(queue.claim(50)) == 2
