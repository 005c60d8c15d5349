"""Retention: by age, bytes, count and consumption; whichever rule allows first.

The background may enforce it at any moment, so these tests look at the log's ends afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Log, Millstream, Retention
from millstream.engine.commit import Commit
from millstream.errors import CorruptionError, InvalidInput
from millstream.testing import Probe, SimulatedClock
from tests.unit.damaging import Fragile


@pytest.fixture
def log(ms: Millstream) -> Log:
    return ms.log("x")


def start_after(log: Log) -> int:
    log.enforce_retention()
    return log.start_offset()


def test_a_log_keeps_all_unless_told_otherwise(log: Log, clock: SimulatedClock) -> None:
    log.append_many([b"x"] * 10)
    clock.advance(timedelta(days=10_000))

    assert log.retention() == Retention()
    assert start_after(log) == 0


def test_by_age_what_is_older_goes(log: Log, clock: SimulatedClock) -> None:
    log.retain(age=60)
    for _ in range(4):
        log.append_many([b"x", b"y"])
        clock.advance(20)
    log.append(b"z")

    assert start_after(log) == 2
    clock.advance(timedelta(seconds=39))
    assert start_after(log) == 6
    clock.advance(timedelta(days=1))
    assert start_after(log) == 9
    assert log.append(b"again") == 9


def test_age_is_that_of_the_append_not_the_producers_timestamp(
    log: Log, clock: SimulatedClock
) -> None:
    log.retain(age=60)
    log.append(b"claims to be old", timestamp=1)
    log.append(b"claims to be young", timestamp=clock.wall_ms() + 10**9)

    assert start_after(log) == 0
    clock.advance(61)
    assert start_after(log) == 2


@pytest.mark.parametrize(("jump_s", "left_s"), [(3600, 0), (-3600, 7200)])
def test_age_is_measured_by_the_wall_clock(
    log: Log, clock: SimulatedClock, jump_s: int, left_s: int
) -> None:
    log.retain(age=3600)
    log.append(b"x")
    clock.jump(jump_s)
    clock.advance(left_s)
    assert start_after(log) == 0
    clock.advance(1)
    assert start_after(log) == 1


def test_age_cuts_inside_what_the_fold_has_joined(
    ms: Millstream, log: Log, clock: SimulatedClock
) -> None:
    for _ in range(6):
        log.append(b"x")
        clock.advance(10)
    ms.fold()
    log.retain(age=35)

    assert start_after(log) == 3
    assert [record.offset for record in log.read()] == [3, 4, 5]


def test_by_count_the_newest_stay(log: Log) -> None:
    log.append_many([b"x"] * 5)
    log.append(b"y")
    log.retain(count=2)

    assert start_after(log) == 4
    log.append_many([b"z"] * 3)
    assert start_after(log) == 7
    log.retain(count=0)
    assert start_after(log) == 9
    assert log.append(b"next") == 9


def test_by_bytes_whole_entries_go_until_the_rest_fits(log: Log) -> None:
    for n in range(10):
        log.append(bytes([n]) * 1_000)
    log.retain(bytes=3_500)
    start = start_after(log)
    info = log.info()

    assert info is not None
    assert info.bytes <= 3_500
    assert start == 7
    assert [record.value[0] for record in log.read()] == [7, 8, 9]


def test_by_bytes_a_batch_goes_as_a_whole(log: Log) -> None:
    log.append_many([b"x" * 1_000] * 5)
    log.append_many([b"y" * 1_000] * 5)
    log.retain(bytes=6_000)

    assert start_after(log) == 5


def test_consumed_is_what_every_cursor_has_passed(log: Log) -> None:
    log.append_many([b"x"] * 10)
    log.retain(consumed=True)
    assert start_after(log) == 0
    slow, fast = log.cursor("slow"), log.cursor("fast")

    fast.ack_up_to(8)
    assert start_after(log) == 0
    slow.ack_up_to(3)
    slow.ack(5)
    assert start_after(log) == 3
    slow.delete()
    assert start_after(log) == 8
    assert [record.offset for record in log.read()] == [8, 9]


def test_consumed_looks_at_the_durable_floor_of_a_cursor_in_memory(log: Log) -> None:
    log.append_many([b"x"] * 25)
    log.retain(consumed=True)
    cursor = log.cursor("c", durable=False, section=10)
    cursor.ack(range(15))

    assert start_after(log) == 0
    cursor.flush()
    assert start_after(log) == 10


def test_consumed_goes_on_after_another_rule_overtook_the_reader(log: Log) -> None:
    log.append_many([b"x"] * 10)
    cursor = log.cursor("c")
    log.truncate(before=4)
    cursor.ack(cursor.take(3))
    log.retain(consumed=True)

    assert start_after(log) == 7


def test_the_furthest_rule_counts(log: Log, clock: SimulatedClock) -> None:
    log.append_many([b"x"] * 4)
    clock.advance(100)
    log.append_many([b"x"] * 4)
    log.retain(age=50, count=6)
    assert start_after(log) == 4
    log.retain(age=50, count=1)
    assert start_after(log) == 7


def test_it_is_kept_and_can_be_lifted(log: Log, reopen: Callable[..., Millstream]) -> None:
    log.append_many([b"x"] * 4)
    log.retain(age=1.5, bytes=10**9, count=4, consumed=True)
    again = reopen().log("x")

    assert again.retention() == Retention(age_ms=1500, bytes=10**9, count=4, consumed=True)
    again.retain()
    again.append(b"x")
    assert again.retention() == Retention()
    assert start_after(again) == 0


@pytest.mark.parametrize("rules", [{"age": -1}, {"bytes": -1}, {"count": -1}])
def test_a_negative_rule_is_refused(log: Log, rules: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        log.retain(**rules)


def test_a_log_that_does_not_exist_has_nothing_to_forget(log: Log) -> None:
    assert log.enforce_retention() == 0
    assert log.retention() == Retention()


def test_a_bounded_log_takes_no_more_room_for_ever(ms: Millstream) -> None:
    log = ms.log("x")
    log.retain(count=10)
    sizes = []
    for _ in range(5):
        for _ in range(20):
            log.append_many([b"x" * 100] * 5)
        log.enforce_retention()
        info = log.info()
        assert info is not None
        sizes.append(info.bytes)

    assert len(set(sizes)) == 1
    assert len(log) == 10


class Interrupting(SimulatedClock):
    """A clock that, asked for the time of day, first lets something else happen, once."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Callable[[], object] | None = None

    def wall_ms(self) -> int:
        first, self.first = self.first, None
        if first is not None:
            first()
        return super().wall_ms()


def test_what_another_process_forgets_meanwhile_is_counted_again(tmp_path: Path) -> None:
    path, clock, other_clock = tmp_path / "s.db", Interrupting(), SimulatedClock()
    with (
        millstream.open(path, clock=clock) as ms,
        millstream.open(path, clock=other_clock) as other,
        Probe(ms).pause_keeper(),
        Probe(other).pause_keeper(),
    ):
        log = ms.log("x")
        log.retain(age=60)
        log.append_many([b"old"] * 10)
        ms.fold()
        clock.advance(61)
        other_clock.advance(61)
        log.append(b"young")
        ms.fold()

        def forgotten_elsewhere() -> None:
            Probe(other).upkeep()
            assert other.log("x").start_offset() == 10

        clock.first = forgotten_elsewhere
        log.enforce_retention()
        assert log.start_offset() == 10
        assert [record.value for record in log.read()] == [b"young"]


def test_records_that_vanished_are_told_by_name() -> None:
    fragile = Fragile()
    log = fragile.ms.log("x")
    Probe(fragile.ms).pause_keeper()
    log.retain(age=60)
    log.append_many([b"old"] * 10)
    fragile.settle()
    with fragile.engine.write() as writer:
        writer.commit(Commit(deletes={fragile.entry("x", 0)}))
    fragile.clock.advance(61)
    with pytest.raises(CorruptionError, match="log 'x'"):
        log.enforce_retention()
