"""The file of the write-ahead log reaches ahead of what is written, and that changes nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

import millstream
from millstream.engine.sqlite.checkpoint import (
    AHEAD_BYTES,
    LARGE_BYTES,
    LOW_BYTES,
    START_BYTES,
    WalPreallocation,
)
from millstream.engine.sqlite.wal import FRAME_BYTES, HEADER_BYTES, count_sound, find_break

VALUE = bytes(1_000)
MANY = 60

STEP_BYTES = FRAME_BYTES + 4096


def wal_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def written_bytes(path: Path) -> int:
    return HEADER_BYTES + count_sound(wal_of(path)) * STEP_BYTES


def filled(path: Path, count: int) -> millstream.Millstream:
    ms = millstream.open(path)
    for _ in range(count):
        ms.log("a").append(VALUE)
    return ms


def test_a_log_that_has_grown_reaches_ahead(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with filled(path, MANY):
        ahead = wal_of(path).stat().st_size - written_bytes(path)
        assert LOW_BYTES < ahead <= AHEAD_BYTES + LOW_BYTES
        assert wal_of(path).read_bytes().endswith(bytes(LOW_BYTES))


def test_a_short_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with filled(path, 3):
        size = wal_of(path).stat().st_size
        assert size == written_bytes(path) < START_BYTES


def test_large_commits_need_no_room(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with millstream.open(path) as ms:
        for _ in range(5):
            ms.log("a").append_many([VALUE] * (2 * LARGE_BYTES // len(VALUE)))
        assert wal_of(path).stat().st_size == written_bytes(path)


def test_commits_that_are_not_synced_need_no_room(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with millstream.open(path, durability="relaxed") as ms:
        for _ in range(MANY):
            ms.log("a").append(VALUE)
        assert wal_of(path).stat().st_size == written_bytes(path)


def test_after_a_crash_every_commit_is_there(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    with filled(path, MANY):
        for side in ("", "-wal"):
            shutil.copy(f"{path}{side}", f"{copy}{side}")
    assert find_break(wal_of(copy)) is None
    with millstream.open(copy) as ms:
        assert [record.value for record in ms.log("a").read()] == [VALUE] * MANY
        ms.log("a").append(b"one more")
        assert ms.log("a").end_offset() == MANY + 1


def test_what_others_write_and_cut_is_never_written_over(tmp_path: Path) -> None:
    path, expected = tmp_path / "a.db", []
    with filled(path, MANY) as ms, millstream.open(path) as other:
        expected += [VALUE] * MANY
        for number in range(4 * MANY):
            value = b"%d" % number + VALUE
            (ms if number % 3 else other).log("a").append(value)
            expected.append(value)
            if number % 50 == 49:
                connection = apsw.Connection(str(path))
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                connection.close()
        assert find_break(wal_of(path)) is None
        assert [record.value for record in ms.log("a").read()] == expected
    with millstream.open(path) as ms:
        assert [record.value for record in ms.log("a").read()] == expected


@pytest.mark.parametrize("wrong", ["gone", "a folder"])
def test_a_file_that_cannot_be_made_longer_is_no_error(tmp_path: Path, wrong: str) -> None:
    if wrong == "a folder":
        (tmp_path / "a.db-wal").mkdir()
    room = WalPreallocation(str(tmp_path / "a.db"))
    room.step_bytes = STEP_BYTES
    for pages in range(100, 105):
        room.pages = pages
        room.ensure()
    assert not wal_of(tmp_path / "a.db").is_file()
