"""Staging: append now, commit later, alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import millstream
from millstream import Limits, Log, Millstream
from millstream.errors import EndMoved, InvalidInput, Locked
from millstream.testing import SimulatedClock

Reopen = Callable[..., Millstream]
LEASE = timedelta(milliseconds=Limits().stage_lease_ms)


@pytest.fixture
def log(ms: Millstream) -> Log:
    log = ms.log("x")
    log.append_many([b"0", b"1"])
    return log


def texts(records: object) -> list[str]:
    return [record.text for record in records]  # type: ignore[attr-defined]


def test_staged_records_are_readable_here_at_once(log: Log) -> None:
    with log.stage() as stage:
        assert stage.append("2", key=b"k", headers={"h": 1}, timestamp=7) == 2
        assert stage.append({"n": 3}) == 3

        assert texts(stage.read()) == ["0", "1", "2", '{"n":3}']
        assert texts(stage.read(1, 3)) == ["1", "2"]
        assert (stage.start_offset(), stage.end_offset()) == (0, 4)
        staged = stage.get(2)
        assert staged is not None
        assert (staged.key, staged.headers["h"], staged.timestamp) == (b"k", 1, 7)
        assert (stage.get(4), stage.wait(3), stage.wait(4)) == (None, True, False)
        assert texts(log.read()) == ["0", "1"]


def test_a_commit_makes_them_durable_and_visible(log: Log, reopen: Reopen) -> None:
    with log.stage() as stage:
        stage.append("2", key=b"k", headers={"h": 1}, timestamp=7)
        stage.append("3", timestamp=8)
        staged = list(stage.read(2))

        assert stage.commit() == 4
        assert stage.commit() == 4
        stored = list(log.read(2))
        assert [(r.value, r.key, r.headers, r.timestamp) for r in stored] == [
            (r.value, r.key, r.headers, r.timestamp) for r in staged
        ]
        assert list(stage.read(2)) == stored

    assert list(reopen().log("x").read(2)) == stored


def test_leaving_the_block_commits_and_an_exception_does_not(log: Log) -> None:
    with log.stage() as stage:
        stage.append("2")

    def fail() -> None:
        with log.stage() as stage:
            stage.append("lost")
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()

    assert texts(log.read()) == ["0", "1", "2"]
    assert log.append("3") == 3


def test_what_was_not_committed_is_lost_with_the_process(log: Log, reopen: Reopen) -> None:
    stage = log.stage()
    stage.append("2")
    stage.commit()
    stage.append("lost")

    assert texts(reopen().log("x").read()) == ["0", "1", "2"]


def test_others_are_locked_out(
    ms: Millstream, log: Log, clock: SimulatedClock, tmp_path: Path
) -> None:
    with log.stage() as stage:
        with pytest.raises(Locked) as locked:
            log.append(b"x")
        assert locked.value.log == "x"
        assert locked.value.retry
        for refused in (log.stage, log.delete, lambda: log.append_many([b"x", b"y"])):
            with pytest.raises(Locked):
                refused()
        with pytest.raises(Locked), ms.transaction() as tx:
            tx.append("x", b"x")
        path = tmp_path / "store.db"
        with millstream.open(path, clock=clock) as other, pytest.raises(Locked):
            other.log("x").append(b"x")
        assert ms.log("y").append(b"free") == 0
        stage.append("2")

    assert log.append("3") == 3


def test_a_full_section_commits_itself(log: Log) -> None:
    with log.stage(section=4) as stage:
        stage.append("2")
        assert log.end_offset() == 2
        stage.append("3")
        assert log.end_offset() == 4
        for n in range(4, 11):
            stage.append(str(n))
        assert (log.end_offset(), stage.end_offset()) == (8, 11)

    assert texts(log.read()) == [str(n) for n in range(11)]
    with pytest.raises(InvalidInput):
        log.stage(section=0)


def test_discard_drops_what_is_staged(log: Log) -> None:
    with log.stage() as stage:
        stage.append("gone")
        stage.append("gone too")
        assert stage.discard() == 2
        assert stage.discard() == 0
        assert stage.append("2") == 2

    assert texts(log.read()) == ["0", "1", "2"]


def test_close_drops_and_frees(log: Log) -> None:
    stage = log.stage()
    stage.append("gone")
    stage.close()
    stage.close()

    assert log.append("2") == 2


def test_the_hold_of_the_dead_runs_out(log: Log, clock: SimulatedClock) -> None:
    dead = log.stage()
    dead.append("never")
    clock.advance(LEASE - timedelta(milliseconds=1))
    with pytest.raises(Locked):
        log.append("x")
    clock.advance(timedelta(milliseconds=1))

    assert log.append("2") == 2
    with pytest.raises((Locked, EndMoved)):
        dead.commit()
    assert texts(log.read()) == ["0", "1", "2"]


def test_another_stage_takes_over_from_the_dead(log: Log, clock: SimulatedClock) -> None:
    dead = log.stage()
    clock.advance(LEASE)
    with log.stage() as stage:
        stage.append("2")
        dead.append("never")
        with pytest.raises(Locked):
            dead.commit()
        dead.close()
        with pytest.raises(Locked):
            log.append("x")

    assert texts(log.read()) == ["0", "1", "2"]


def test_a_wall_clock_that_jumps_frees_nobody(log: Log, clock: SimulatedClock) -> None:
    with log.stage():
        clock.jump(timedelta(days=1))
        with pytest.raises(Locked):
            log.append("x")


def test_an_idle_hold_that_nobody_wanted_goes_on(log: Log, clock: SimulatedClock) -> None:
    with log.stage() as stage:
        clock.advance(LEASE * 2)
        stage.append("2")

    assert texts(log.read()) == ["0", "1", "2"]


def test_a_hold_lasts_as_long_as_it_is_used(log: Log, clock: SimulatedClock) -> None:
    with log.stage() as stage:
        for n in range(2, 8):
            clock.advance(LEASE / 2)
            stage.append(str(n))
            stage.commit()
        with pytest.raises(Locked):
            log.append("x")


def test_nobody_else_moves_the_end_of_a_held_log(log: Log) -> None:
    with log.stage() as stage:
        stage.append("2")
        with pytest.raises(Locked):
            log.truncate(before=50, past_end=True)


def test_a_block_that_cannot_be_committed_still_frees_the_log(
    log: Log, clock: SimulatedClock
) -> None:
    def overtaken() -> None:
        with log.stage() as stage:
            stage.append("2")
            log.truncate(before=50, past_end=True)

    with pytest.raises(millstream.MillstreamError):
        overtaken()
    log.append("free")


def test_a_deleted_log_is_not_resurrected(log: Log, clock: SimulatedClock) -> None:
    stage = log.stage()
    clock.advance(LEASE)
    log.delete()
    stage.append("2")
    with pytest.raises(millstream.MillstreamError):
        stage.commit()

    assert log.info() is None


def test_mixed_timestamps_are_kept(log: Log) -> None:
    with log.stage() as stage:
        stage.append("2", timestamp=5)
        stage.append("3")

    records = list(log.read(2))
    assert records[0].timestamp == 5
    assert records[1].timestamp > 1_000_000


def test_a_cursor_on_a_stage_sees_staged_records(log: Log) -> None:
    with log.stage(section=10) as stage:
        stage.append("2")
        cursor = stage.cursor("c")
        assert [record.offset for record in cursor.take(9)] == [0, 1, 2]
        assert cursor.size() == 3
        cursor.ack_up_to(3)
        assert cursor.is_empty()
        stage.append("3")
        assert not cursor.is_empty()
        assert [record.offset for record in cursor.take(9)] == [3]
        assert cursor.take(wait=5) == []
