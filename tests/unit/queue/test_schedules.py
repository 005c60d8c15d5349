"""Delays and schedules: a message is not claimed before its time, and others go on meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from millstream import Limits, Millstream
from millstream.errors import InvalidInput, NotFound
from millstream.testing import SimulatedClock

from .conftest import Reopen, counts, fold_all, upkeep, values

KINDS = pytest.mark.parametrize(
    "options",
    [{}, {"priority_by": "p"}, {"group_by": "g"}, {"group_by": "g", "group_in_flight": 0}],
    ids=["plain", "priority", "ordered", "fair"],
)
Options = dict[str, str | int]


def moment(clock: SimulatedClock, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock.wall_ms() / 1000, tz=UTC) + timedelta(seconds=seconds)


@KINDS
def test_a_delayed_message_lets_others_go_first(
    ms: Millstream, clock: SimulatedClock, options: Options
) -> None:
    queue = ms.queue("jobs", lease=100, **options)  # type: ignore[arg-type]
    queue.put(b"later", delay=5)
    queue.put(b"now")
    assert values(queue.claim(5)) == [b"now"]
    assert counts(queue) == {"in_flight": 1, "delayed": 1}
    clock.advance(4.999)
    assert queue.claim(5) == []
    clock.advance(0.001)
    assert counts(queue) == {"in_flight": 1, "available": 1}
    assert values(queue.claim(5)) == [b"later"]


@KINDS
def test_a_batch_may_be_delayed(ms: Millstream, clock: SimulatedClock, options: Options) -> None:
    queue = ms.queue("jobs", bucket_exponent=0, **options)  # type: ignore[arg-type]
    assert len(queue.put_many([b"a", b"b", b"c"], delay=5)) == 3
    assert len(queue.put_many([], delay=5)) == 0
    assert counts(queue) == {"delayed": 3}
    assert queue.claim(5) == []
    clock.advance(5)
    assert values(queue.claim(5)) == [b"a", b"b", b"c"]


def test_messages_become_due_in_the_order_of_their_times(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", lease=100)
    for seconds in (3, 1, 2):
        queue.put(b"%d" % seconds, delay=seconds)
    found = []
    for _ in range(3):
        clock.advance(1)
        found.append(values(queue.claim(5)))
    assert found == [[b"1"], [b"2"], [b"3"]]


def test_a_delay_is_store_time_and_a_moment_is_wall_time(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", lease=1_000)
    queue.put(b"delay", delay=100)
    queue.put(b"moment", at=moment(clock, 100))
    queue.put(b"ms", at=clock.wall_ms() + 100_000)
    clock.jump(99)
    assert queue.claim(5) == []
    clock.jump(1)
    assert values(queue.claim(5)) == [b"moment", b"ms"]
    clock.jump(-1_000)
    clock.advance(99)
    assert queue.claim(5) == []
    clock.advance(1)
    assert values(queue.claim(5)) == [b"delay"]


def test_a_wall_clock_set_back_delays_a_moment(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", lease=1_000)
    queue.put(b"a", at=moment(clock, 10))
    clock.jump(-50)
    clock.advance(59)
    assert counts(queue) == {"delayed": 1}
    assert queue.claim(5) == []
    clock.advance(1)
    assert values(queue.claim(5)) == [b"a"]


def test_a_moment_of_a_group_is_fixed_when_it_is_put(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", group_by="g", lease=1_000)
    queue.put(b"a", group="a", at=moment(clock, 10))
    clock.jump(1_000)
    assert queue.claim(5) == []
    clock.advance(10)
    assert values(queue.claim(5)) == [b"a"]


@KINDS
def test_a_moment_that_is_past_is_now(
    ms: Millstream, clock: SimulatedClock, options: Options
) -> None:
    queue = ms.queue("jobs", delay=60, **options)  # type: ignore[arg-type]
    queue.put(b"past", at=moment(clock, -5))
    queue.put(b"now", delay=0)
    assert sorted(values(queue.claim(5))) == [b"now", b"past"]


@KINDS
def test_a_queue_may_delay_everything(
    ms: Millstream, clock: SimulatedClock, options: Options
) -> None:
    queue = ms.queue("jobs", sources="l", delay=10, **options)  # type: ignore[arg-type]
    ms.log("l").append(b"log")
    queue.put(b"put")
    queue.put(b"sooner", delay=3)
    queue.put(b"later", delay=20)
    assert queue.claim(5) == []
    assert counts(queue) == {"delayed": 4}
    found = []
    for _ in range(20):
        clock.advance(1)
        found.append(sorted(values(queue.claim(5))))
    assert [(n + 1, some) for n, some in enumerate(found) if some] == [
        (3, [b"sooner"]),
        (10, [b"log", b"put"]),
        (20, [b"later"]),
    ]


def test_a_delay_counts_from_the_append_not_from_the_routing(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", delay=10)
    queue.put(b"a")
    clock.advance(10)
    assert values(queue.claim()) == [b"a"]


def test_what_is_no_time_is_refused_and_nothing_is_put(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", lease=10)
    wrong: list[dict[str, object]] = [
        {"delay": -1},
        {"delay": 1e12},
        {"at": -1},
        {"at": 2**62},
        {"at": "tomorrow"},
        {"at": clock.wall_ms() + 0.5},
        {"at": datetime(2030, 1, 1)},
        {"delay": 1, "at": clock.wall_ms()},
    ]
    for options in wrong:
        with pytest.raises(InvalidInput):
            queue.put(b"a", **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            queue.put_many([b"a"], **options)  # type: ignore[arg-type]
    assert counts(queue) == {}
    with pytest.raises(NotFound):
        ms.queue("other").put(b"a", delay=1)


@KINDS
def test_a_delayed_message_has_all_its_attempts(
    ms: Millstream, clock: SimulatedClock, options: Options
) -> None:
    queue = ms.queue("jobs", max_attempts=2, backoff=3, dead_letter="dead", **options)  # type: ignore[arg-type]
    queue.put(b"a", headers={"g": "a", "p": 3}, delay=5)
    clock.advance(5)
    queue.nack(queue.claim())
    assert counts(queue) == {"delayed": 1}
    clock.advance(3)
    queue.nack(queue.claim())
    assert counts(queue) == {"failed": 1}
    assert [record.value for record in ms.log("dead").read()] == [b"a"]
    assert queue.redrive() == 1
    (again,) = queue.claim(5)
    assert (again.value, again.attempt) == (b"a", 1)


@KINDS
def test_delayed_messages_are_peeked_purged_and_paused(
    ms: Millstream, clock: SimulatedClock, options: Options
) -> None:
    queue = ms.queue("jobs", **{"lease": 100, **options})  # type: ignore[arg-type]
    queue.put(b"a", delay=5)
    queue.put(b"b", at=moment(clock, 5))
    queue.put(b"c", headers={"g": "x"}, delay=5)
    assert queue.peek(5) == []
    assert sorted(values(queue.peek(5, state="delayed"))) == [b"a", b"b", b"c"]
    queue.pause()
    clock.advance(5)
    assert queue.claim(5) == []
    assert queue.purge() == 3
    queue.resume()
    clock.advance(5)
    assert queue.claim(5) == []
    assert counts(queue) == {}
    queue.put(b"d", headers={"g": "x"}, delay=1)
    clock.advance(1)
    assert values(queue.claim(5)) == [b"d"]


@KINDS
def test_a_redrive_with_a_rate_spreads_the_due_times(
    ms: Millstream, clock: SimulatedClock, options: Options
) -> None:
    queue = ms.queue("jobs", **{"lease": 100, **options})  # type: ignore[arg-type]
    queue.put_many([b"%d" % n for n in range(5)])
    queue.fail(queue.claim(5))
    assert queue.redrive(rate=2) == 5
    assert counts(queue) == {"available": 1, "delayed": 4}
    found = []
    for _ in range(6):
        found.append(len(queue.claim(5)))
        clock.advance(0.5)
    assert found == [1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_redrive_with_no_rate_at_all_is_refused(ms: Millstream, rate: float) -> None:
    queue = ms.queue("jobs", lease=100)
    queue.put(b"a")
    queue.fail(queue.claim())
    with pytest.raises(InvalidInput):
        queue.redrive(rate=rate)
    assert counts(queue) == {"failed": 1}


@KINDS
def test_delays_survive_folding_upkeep_and_opening_again(
    reopen: Reopen, clock: SimulatedClock, options: Options
) -> None:
    limits = Limits(inline_bytes_max=0, fold_deltas_min=1, entities_cached_max=1)
    ms = reopen(limits)
    ms.queue("jobs", **{"lease": 100, "bucket_exponent": 0, **options})  # type: ignore[arg-type]
    for seconds in range(1, 9):
        options_of = {"delay": seconds} if seconds % 2 else {"at": moment(clock, seconds)}
        ms.queue("jobs").put(b"%d" % seconds, headers={"g": f"{seconds}"}, **options_of)  # type: ignore[arg-type]
    found = []
    for _ in range(8):
        clock.advance(1)
        fold_all(ms)
        upkeep(ms)
        ms = reopen(limits)
        some = ms.queue("jobs").claim(5)
        found.append(values(some))
        ms.queue("jobs").ack(some)
    assert found == [[b"%d" % seconds] for seconds in range(1, 9)]
    assert counts(ms.queue("jobs")) == {"done": 8}


def test_a_delay_survives_a_reboot(reopen: Reopen, clock: SimulatedClock) -> None:
    reopen().queue("jobs", lease=10).put(b"a", delay=10)
    clock.reboot(off=4)
    queue = reopen().queue("jobs")
    assert queue.claim() == []
    clock.advance(10)
    assert values(queue.claim()) == [b"a"]


def test_a_delay_holds_in_a_queue_that_was_made_again_from_the_beginning(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", lease=10)
    queue.put(b"old", delay=1)
    queue.delete()
    queue = ms.queue("jobs", start="earliest")
    queue.put(b"later", delay=3_600)
    assert b"later" not in values(queue.claim(10))


def test_thousands_that_are_due_at_once_all_come(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", lease=100)
    queue.put_many([b"a"] * 1_500, delay=1)
    clock.advance(1)
    found = 0
    while some := queue.claim(400):
        found += len(some)
        queue.ack(some)
    assert found == 1_500
    assert counts(queue) == {"done": 1_500}
