"""DiskSpace: when the disk is asked, and what is kept in reserve."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path

import pytest

import millstream
from millstream import SqliteOptions
from millstream.engine.disk import ASKED_BYTES, ASKED_S, DiskSpace, FileSpace
from millstream.engine.protocol import Shortage
from millstream.engine.sqlite.options import fitted
from millstream.errors import DiskFull
from millstream.limits import Limits, MiB
from millstream.testing import Probe, SimulatedClock

Usage = namedtuple("Usage", "total used free")


class Disk:
    """A disk whose room a test decides."""

    def __init__(self, free: int, total: int = 1024 * MiB) -> None:
        self.free = free
        self.total = total
        self.asked = 0

    def usage(self, _: str) -> Usage:
        self.asked += 1
        if self.free < 0:
            raise OSError("unreachable")
        return Usage(self.total, self.total - self.free, self.free)


class Room:
    """The space on a disk beside a write-ahead log of any size."""

    wal_bytes = 0

    def __init__(self, clock: SimulatedClock, limits: Limits, file: FileSpace) -> None:
        self._space = DiskSpace("/disk", limits, clock, file=lambda: file, log=self)

    def shortage(self, wal_bytes: int) -> Shortage | None:
        self.wal_bytes = wal_bytes
        return self._space.shortage()


def room(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, *, inside: int = 0, owed: int = 0, **limits: int
) -> tuple[Room, SimulatedClock]:
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    clock = SimulatedClock()
    return Room(clock, Limits(**limits), FileSpace(inside, owed)), clock


def test_while_there_is_room_the_disk_is_asked_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(100 * MiB)
    found, clock = room(disk, monkeypatch)
    for _ in range(1_000):
        assert found.shortage(0) is None
    assert disk.asked == 1
    clock.advance(ASKED_S)
    found.shortage(0)
    assert disk.asked == 2
    found.shortage(ASKED_BYTES)  # the log has grown since
    assert disk.asked == 3


def test_a_disk_is_asked_before_the_log_can_have_taken_its_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the log grows by takes its room twice: in the log, and then in the file."""
    disk = Disk(1 * MiB + 10_000, total=16 * MiB)
    found, _ = room(disk, monkeypatch)
    assert found.shortage(0) is None
    assert found.shortage(4_999) is None
    assert disk.asked == 1
    found.shortage(5_000)
    assert disk.asked == 2


def test_a_disk_is_asked_again_if_the_log_has_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are in the file now, and it grows anew."""
    disk = Disk(100 * MiB)
    found, _ = room(disk, monkeypatch)
    found.shortage(8 * MiB)
    found.shortage(0)
    assert disk.asked == 2


def test_while_there_is_none_each_question_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(16 * MiB - 1)
    found, _ = room(disk, monkeypatch)
    short = found.shortage(0)
    assert short is not None
    assert not short.is_severe
    disk.free = 4 * MiB - 1
    short = found.shortage(0)
    assert short is not None
    assert short.is_severe
    disk.free = 16 * MiB
    assert found.shortage(0) is None


@pytest.mark.parametrize(
    ("disk", "limits", "is_short"),
    [
        (Disk(1 * MiB, total=16 * MiB), {}, False),  # of a small disk a sixteenth is kept
        (Disk(1 * MiB - 1, total=16 * MiB), {}, True),
        (Disk(0), {"disk_free_bytes_min": 0}, False),  # switched off
        (Disk(-1), {}, False),  # cannot be asked: the commit itself will tell
    ],
)
def test_the_reserve(
    disk: Disk, limits: dict[str, int], is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = room(disk, monkeypatch, **limits)
    assert (found.shortage(0) is not None) is is_short


@pytest.mark.parametrize(
    ("free", "inside", "is_short"),
    [
        (8 * MiB, 16 * MiB, False),  # the file takes as much as the reserve without growing
        (8 * MiB, 16 * MiB - 1, True),
        (8 * MiB - 1, 900 * MiB, True),  # the write-ahead log needs room of the disk itself
    ],
)
def test_free_room_in_the_file_counts_while_the_disk_has_half_of_the_reserve(
    free: int, inside: int, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = room(Disk(free), monkeypatch, inside=inside)
    assert (found.shortage(0) is not None) is is_short


@pytest.mark.parametrize(
    ("free", "owed", "is_short"),
    [
        (40 * MiB, 24 * MiB, False),
        (40 * MiB, 24 * MiB + 1, True),  # copying the log into the file would take the reserve
        (48 * MiB, 32 * MiB, False),
    ],
)
def test_what_the_file_will_grow_by_counts_as_taken(
    free: int, owed: int, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = room(Disk(free), monkeypatch, owed=owed)
    short = found.shortage(32 * MiB)
    assert (short is not None) is is_short
    if short is not None:
        assert not short.is_severe  # what makes room is still written
        assert f"{owed:,} of them are needed" in short.error().message


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (1024 * MiB, (16 * MiB, 2 * MiB, 64 * MiB)),
        (256 * MiB, (16 * MiB, 2 * MiB, 64 * MiB)),
        (64 * MiB, (4 * MiB, MiB // 2, 16 * MiB)),
    ],
)
def test_the_write_ahead_log_of_a_small_disk_is_small(
    total: int, expected: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", Disk(0, total=total).usage)
    found = fitted(SqliteOptions(), "/disk")
    assert (found.wal_bytes_checkpoint, found.wal_bytes_left, found.wal_bytes_reset) == expected
    assert fitted(SqliteOptions(wal_bytes_checkpoint=5), "/disk").wal_bytes_checkpoint == 5


def test_a_store_that_has_filled_its_disk_takes_records_again_once_it_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(100 * MiB)
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    with millstream.open(tmp_path / "a.db", limits=Limits(disk_free_bytes_min=1 * MiB)) as ms:
        Probe(ms).pause_keeper()
        log = ms.log("a")
        for _ in range(30):
            log.append_many([bytes(10_000)] * 10)
        disk.free = 1 * MiB - 1
        while ms.stats()["condition"] != "disk_full":  # the disk is asked every few milliseconds
            os.sched_yield()
        with pytest.raises(DiskFull, match="truncate logs"):
            log.append(b"one more")

        assert log.truncate(before=300) == 300
        Probe(ms).upkeep()
        Probe(ms).store.engine.upkeep(nullcontext())
        assert log.append(b"one more") == 300


def test_a_short_disk_gets_back_the_room_of_a_large_write_ahead_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(100 * MiB)
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    options = SqliteOptions(wal_bytes_checkpoint=100_000)
    with millstream.open(tmp_path / "a.db", options=options) as ms:
        Probe(ms).pause_keeper()
        for _ in range(10):
            ms.log("a").append_many([bytes(10_000)] * 10)
        engine, wal = Probe(ms).store.engine, tmp_path / "a.db-wal"
        engine.upkeep(nullcontext())
        assert wal.stat().st_size > 1_000_000  # kept, to be written from its start again

        disk.free = 16 * MiB - 1
        while ms.stats()["condition"] != "disk_full":
            os.sched_yield()
        engine.upkeep(nullcontext())
        assert wal.stat().st_size == 0
        assert len(list(ms.log("a").read())) == 100
