"""Promise: a store whose file was overwritten in place acknowledges nothing any more.

The name and the inode stay the same then, and SQLite would mix the pages of two files.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

import millstream
from millstream.errors import StoreGone
from millstream.testing import Probe, SimulatedClock

LATER_S = 1
"""Long enough for the next call to look again."""


def fill(path: Path, records: int) -> bytes:
    """Make a store, or add to it; answers its file as it is when it is closed."""
    with millstream.open(path) as ms:
        ms.log("a").append_many([b"%0999d" % number for number in range(records)])
        ms.log("b").append(b"")
        ms.fold()
    return path.read_bytes()


def smaller(folder: Path) -> bytes:
    return fill(folder / "other.db", 1)


def larger(folder: Path) -> bytes:
    return fill(folder / "other.db", 5_000)


def older(folder: Path) -> bytes:
    return (folder / "backup.db").read_bytes()


def text(_: Path) -> bytes:
    return b"Dear diary,\n" * 100_000


def nothing(_: Path) -> bytes:
    return b""


@pytest.mark.parametrize("make", [smaller, larger, older, text, nothing])
def test_what_was_overwritten_is_written_no_more(tmp_path: Path, make: object) -> None:
    path, clock = tmp_path / "s.db", SimulatedClock()
    (tmp_path / "backup.db").write_bytes(fill(path, 100))
    fill(path, 1_000)
    assert callable(make)
    other = make(tmp_path)
    ms = millstream.open(path, clock=clock)
    probe = Probe(ms)
    probe.pause_keeper()
    ms.log("a").append(b"acknowledged")
    clock.advance(LATER_S)
    path.write_bytes(other)
    for _ in range(2):
        with pytest.raises(StoreGone, match=r"was overwritten .*s\.db-wal away"):
            ms.log("a").append(b"refused")
        clock.advance(LATER_S)
    assert ms.stats()["missing"] == str(path)
    with pytest.raises(StoreGone):
        probe.store.engine.checkpoint(nullcontext())  # type: ignore[attr-defined]
    ms.close()
    assert path.read_bytes() == other


def test_a_store_that_is_overwritten_just_before_it_is_closed_is_not_mixed_with_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.db"
    fill(path, 1_000)
    other = smaller(tmp_path)
    with millstream.open(path) as ms:
        Probe(ms).pause_keeper()
        ms.log("a").append(b"acknowledged")
        path.write_bytes(other)
    assert path.read_bytes() == other


def test_checkpoints_and_growth_by_any_handle_are_no_alarm(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", SimulatedClock()
    with millstream.open(path, clock=clock) as ms, millstream.open(path) as other:
        checkpoints = (Probe(other).store.engine, Probe(ms).store.engine)
        for turn in range(20):
            (ms, other)[turn % 2].log("a").append_many([bytes(1_000)] * 50)
            if turn == 10:
                other.log("a").truncate(before=400)
            ms.log("a").append(b"")
            checkpoints[turn % 3 % 2].checkpoint(nullcontext())  # type: ignore[attr-defined]
            clock.advance(LATER_S)
        assert ms.log("a").end_offset() == 20 * 51
    with millstream.open(path) as ms:
        assert ms.log("a").append(b"") == 20 * 51


def test_a_file_that_is_touched_or_copied_from_is_no_alarm(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", SimulatedClock()
    fill(path, 100)
    with millstream.open(path, clock=clock) as ms:
        ms.log("a").append(b"one")
        clock.advance(LATER_S)
        path.touch()
        shutil.copy(path, tmp_path / "copy.db")
        assert ms.log("a").append(b"two") == 101
