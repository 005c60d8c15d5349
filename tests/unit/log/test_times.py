"""Reading by time and from the end: offsets for times, the last records, and single records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream
from millstream import Millstream
from millstream.engine.memory.faults import Faults
from millstream.errors import InvalidInput, OutOfRange, Partitioned, Truncated
from millstream.log.reading.times import SCANNED_MAX
from millstream.record import moment
from millstream.testing import MemoryEngine, SimulatedClock, memory_store
from tests.unit.damaging import fold_all
from tests.unit.surfaces import SURFACES, surface_of

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture(params=SURFACES)
def ms(request: pytest.FixtureRequest, tmp_path: Path, clock: SimulatedClock) -> Iterator[Any]:
    path = tmp_path / "a.db"
    with surface_of(request.param) as surface, surface.open(path, clock=clock) as opened:
        yield opened


def hourly(ms: Any, clock: SimulatedClock, hours: int = 5) -> list[datetime]:
    """Append ten records in each hour to the log `x`, as batches and one by one."""
    began = []
    for hour in range(hours):
        began.append(moment(clock.wall_ms()))
        values = [b"%d" % (10 * hour + n) for n in range(10)]
        if hour % 2:
            for value in values:
                ms.log("x").append(value)
        else:
            ms.log("x").append_many(values)
        clock.advance(3600)
    return began


def offsets(records: Any) -> list[int]:
    return [record.offset for record in records]


def test_the_offset_at_a_time_is_that_of_the_first_record_from_then_on(
    ms: Any, clock: SimulatedClock
) -> None:
    log = ms.log("x")
    began = hourly(ms, clock)
    for hour, time in enumerate(began):
        assert log.offset_at(time) == 10 * hour
        assert log.offset_at(time - timedelta(milliseconds=1)) == 10 * hour
        assert log.offset_at(time + timedelta(milliseconds=1)) == 10 * hour + 10
        assert log.offset_at(time.astimezone(timezone(timedelta(hours=-5)))) == 10 * hour
        assert log.offset_at(int(time.timestamp() * 1000)) == 10 * hour
    assert log.offset_at(datetime(1, 1, 1, tzinfo=UTC)) == 0
    assert log.offset_at(datetime(9999, 1, 1, tzinfo=UTC)) == log.end_offset() == 50
    assert log.offset_at(timedelta(hours=2)) == 30
    assert log.offset_at(timedelta(0)) == 50


def test_an_empty_log_and_a_missing_one_have_their_end(ms: Any) -> None:
    assert ms.log("x").offset_at(timedelta(hours=1)) == 0
    ms.log("x").append_many([b"a", b"b"])
    ms.log("x").truncate(before=2)
    assert ms.log("x").offset_at(0) == 2
    assert offsets(ms.log("x").read(since=0)) == []


def test_what_was_deleted_is_not_found(ms: Any, clock: SimulatedClock) -> None:
    began = hourly(ms, clock)
    ms.log("x").truncate(before=25)
    assert ms.log("x").offset_at(began[0]) == 25
    assert offsets(ms.log("x").read(since=began[0]))[0] == 25
    assert ms.log("x").offset_at(began[4]) == 40


def test_reading_following_and_cursors_begin_at_a_time(ms: Any, clock: SimulatedClock) -> None:
    log = ms.log("x")
    began = hourly(ms, clock)
    assert offsets(log.read(since=began[3])) == list(range(30, 50))
    assert offsets(log.read(since=timedelta(hours=1), stop=45)) == list(range(40, 45))
    assert sum(len(block) for block in log.read_blocks(since=began[4])) == 10
    assert offsets(log.tail(since=began[4], timeout=0)) == list(range(40, 50))
    cursor = log.cursor("c", start=began[2])
    assert offsets(cursor.take(1)) == [20]
    assert offsets(log.cursor("d", start=timedelta(hours=1)).take(1)) == [40]
    cursor.ack_up_to(33)
    cursor.seek(began[1])
    assert cursor.floor() == 10
    cursor.seek(timedelta(hours=1))
    assert offsets(cursor.take(1)) == [40]
    memory = log.cursor("m", durable=False, start=began[1])
    memory.seek(began[3])
    assert offsets(memory.take(1)) == [30]


def test_a_fork_has_the_times_of_its_parent(ms: Any, clock: SimulatedClock) -> None:
    began = hourly(ms, clock)
    fork = ms.log("x").fork("y")
    later = moment(clock.wall_ms())
    ms.log("x").append(b"theirs")
    fork.append_many([b"ours", b"too"])
    for hour, time in enumerate(began):
        assert fork.offset_at(time) == 10 * hour
    assert fork.offset_at(later) == 50
    assert offsets(fork.read(since=later)) == [50, 51]


def test_each_partition_begins_at_the_time(ms: Any, clock: SimulatedClock) -> None:
    log = ms.log("parts", partitions=3)
    for value in (b"old", b"new"):
        log.append_many([value] * 30, keys=[b"%d" % n for n in range(30)])
        clock.advance(3600)
    since = timedelta(minutes=90)
    expected = {number: log.partition(number).end_offset() // 2 for number in range(3)}
    assert log.offset_at(since) == expected
    assert [record.value for record in log.read(since=since)] == [b"new"] * 30
    assert len(list(log.tail(since=since, timeout=0))) == 30
    cursor = log.cursor("c", start=since)
    assert {record.value for record in cursor.take(60)} == {b"new"}
    cursor.seek(timedelta(hours=5))
    assert len(cursor.take(60)) == 60
    with pytest.raises(Partitioned):
        ms.log("parts").offset_at(since)
    with pytest.raises(InvalidInput, match="not both"):
        list(log.read({0: 1}, since=since))


@pytest.mark.parametrize(
    "time", [datetime(2026, 5, 4), timedelta(seconds=-1), -1, 1.5, True, "1h", None, 2**63]
)
def test_what_is_no_time_is_refused(ms: Any, time: Any) -> None:
    with pytest.raises(InvalidInput, match="time"):
        ms.log("x").offset_at(time)


def test_a_start_and_a_time_are_refused_together(ms: Any) -> None:
    for reading in (ms.log("x").read, ms.log("x").tail):
        with pytest.raises(InvalidInput, match="not both"):
            list(reading(3, since=timedelta(hours=1)))


def test_timestamps_of_producers_count(ms: Any) -> None:
    log = ms.log("x")
    log.append_many([b"x"] * 5, timestamps=[1_000, 2_000, 3_000, 3_000, 9_000])
    assert [log.offset_at(moment(ms_)) for ms_ in (0, 1_001, 3_000, 3_001, 9_001)] == [
        0,
        1,
        2,
        4,
        5,
    ]


def test_late_records_hide_none(ms: Any, clock: SimulatedClock) -> None:
    """Devices send what they noted earlier; the search is not led astray by it."""
    log = ms.log("x")
    now_ms = clock.wall_ms()
    for n in range(40):
        log.append(b"x", timestamp=None if n % 4 else now_ms - HOUR_MS)
        clock.advance(60)
    since = moment(now_ms + 20 * 60_000)
    assert log.offset_at(since) == 21  # the record at 20 came then, and is an hour older


def test_timestamps_ahead_of_the_clock_are_found(ms: Any, clock: SimulatedClock) -> None:
    log = ms.log("x")
    ahead = [clock.wall_ms() + HOUR_MS * n for n in range(1, 6)]
    log.append_many([b"x"] * 5, timestamps=ahead)
    assert [log.offset_at(moment(time_ms)) for time_ms in ahead] == [0, 1, 2, 3, 4]


@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=40),
    time_ms=st.integers(900_000, 1_000_300),
    batched=st.booleans(),
)
def test_the_first_record_is_found_however_late_records_are(
    steps: list[tuple[int, int]], time_ms: int, batched: bool
) -> None:
    """Each step: seconds until the append, and how many seconds late its record is."""
    clock = SimulatedClock(1_000_000)
    stamps = []
    with memory_store(clock=clock) as ms:
        for pause, late in steps:
            clock.advance(pause / 1000)
            stamps.append(clock.wall_ms() - late)
            ms.log("x").append(b"x", timestamp=stamps[-1])
        if batched:
            fold_all(ms)
        assert ms.log("x").offset_at(time_ms) == first_from(stamps, time_ms)


def first_from(stamps: Sequence[int], time_ms: int) -> int:
    return next((at for at, stamp in enumerate(stamps) if stamp >= time_ms), len(stamps))


BATCHES, PER_BATCH = 400, 500


def long_log(faults: Faults, *, imported: bool) -> Millstream:
    """A log of 200,000 records in 400 blocks; imported records bear old times, in order."""
    clock = SimulatedClock(10**9)
    ms = memory_store(MemoryEngine(faults=faults), clock=clock)
    for batch in range(BATCHES):
        stamps = range(batch * PER_BATCH, (batch + 1) * PER_BATCH) if imported else None
        ms.log("x").append_many([b"x"] * PER_BATCH, timestamps=stamps)
        if not imported:
            clock.advance(1)
    fold_all(ms)
    return ms


def test_a_long_log_is_searched_by_halves() -> None:
    faults = Faults()
    with long_log(faults, imported=False) as ms:
        for batch in (0, 1, 150, 399):
            before = faults.steps.count("scan")
            assert ms.log("x").offset_at(10**9 + 1000 * batch) == batch * PER_BATCH
            assert faults.steps.count("scan") - before <= 12  # of 400 blocks


def test_an_import_of_old_records_is_searched_by_halves_too() -> None:
    faults = Faults()
    with long_log(faults, imported=True) as ms:
        for time_ms in (0, 3, SCANNED_MAX + 1_234, 199_999, 200_000):
            before = faults.steps.count("scan")
            assert ms.log("x").offset_at(time_ms) == time_ms
            scans = faults.steps.count("scan") - before
            assert scans <= 12 + SCANNED_MAX // PER_BATCH // 32 + 12


def test_negative_numbers_count_from_the_end(ms: Any, clock: SimulatedClock) -> None:
    hourly(ms, clock)
    log = ms.log("x")
    assert offsets(log.read(-10)) == list(range(40, 50))
    assert offsets(log.read(-10, -7)) == [40, 41, 42]
    assert offsets(log.read(45, -2)) == [45, 46, 47]
    assert offsets(log.read(0, -60)) == []
    assert offsets(log.read(-1000)) == list(range(50))
    assert offsets(log.tail(-3, timeout=0)) == [47, 48, 49]
    log.truncate(before=48)
    assert offsets(log.read(-10)) == [48, 49]
    assert offsets(ms.log("missing").read(-10)) == []


def test_negative_numbers_count_staged_records(ms: Any) -> None:
    ms.log("x").append_many([b"0", b"1", b"2"])
    with ms.log("x").stage() as stage:
        stage.append(b"3")
        stage.append(b"4")
        assert offsets(stage.read(-3)) == [2, 3, 4]
        assert offsets(stage.read(-4, -1)) == [1, 2, 3]
        assert offsets(stage.read(0, -9)) == []


def test_single_records_are_found_by_offset(ms: Any) -> None:
    log = ms.log("x")
    log.append_many([b"0", b"1", b"2", b"3"])
    log.truncate(before=2)
    assert [log.at(n).value for n in (2, 3, -1, -2)] == [b"2", b"3", b"3", b"2"]
    for beyond in (4, 2**63, 2**100, -3, -(2**70)):
        with pytest.raises(OutOfRange, match="2 records and ends at 4"):
            log.at(beyond)
    with pytest.raises(Truncated):
        log.at(1)
    with pytest.raises(InvalidInput):
        log.at("1")


def test_threads_use_brackets(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        log.append_many([b"%d" % n for n in range(6)])
        assert (log[5].value, log[-1].value, log[0].value) == (b"5", b"5", b"0")
        assert offsets(log[-2:]) == [4, 5]
        assert offsets(log[1:3]) == [1, 2]
        assert offsets(log[:]) == offsets(log) == list(range(6))
        with pytest.raises(IndexError):
            log[6]
        log.truncate(before=2)
        with pytest.raises(IndexError):  # `Truncated` is one
            log[0]
        with pytest.raises(InvalidInput, match="step"):
            log[::2]
