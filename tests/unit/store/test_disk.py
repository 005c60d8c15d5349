"""DiskSpace: when the disk is asked, and what is kept in reserve."""

from __future__ import annotations

import shutil
from collections import namedtuple

import pytest

from millstream.limits import Limits, MiB
from millstream.store.disk import ASKED_BYTES, ASKED_S, DiskSpace
from millstream.testing import SimulatedClock

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


def room(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, **limits: int
) -> tuple[DiskSpace, SimulatedClock]:
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    clock = SimulatedClock()
    return DiskSpace("/disk", Limits(**limits), clock), clock


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
