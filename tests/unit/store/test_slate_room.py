"""A store in a folder (`file:///`) whose disk is full: writers are told so, and it goes on with room."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

import millstream
from millstream.engine.commit import Commit, Spool, SpooledRows
from millstream.engine.open import open_engine
from millstream.engine.row_copy import copy_rows
from millstream.errors import DiskFull, OutcomeUnknown
from millstream.limits import MiB

pytestmark = pytest.mark.requires("s3")

Usage = namedtuple("Usage", "total used free")
PLENTY = 512 * MiB


class Disk:
    """A disk whose free room a test decides."""

    def __init__(self) -> None:
        self.free = PLENTY

    def usage(self, _: object) -> Usage:
        return Usage(1024 * MiB, 1024 * MiB - self.free, self.free)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    monkeypatch.setattr(shutil, "disk_usage", found.usage)
    return found


def test_a_full_disk_refuses_before_anything_is_sent_and_the_handle_goes_on(
    tmp_path: Path, disk: Disk
) -> None:
    with millstream.open(f"file://{tmp_path}/b") as ms:
        log = ms.log("a")
        log.append(b"before")
        disk.free = MiB
        with pytest.raises(DiskFull, match="Free space on the disk") as refused:
            log.append(b"refused")
        assert refused.value.free_bytes == MiB
        assert [record.value for record in log.read()] == [b"before"]
        disk.free = PLENTY
        log.append(b"after")
        assert [record.value for record in log.read()] == [b"before", b"after"]


def test_a_commit_larger_than_the_room_is_refused(tmp_path: Path, disk: Disk) -> None:
    with millstream.open(f"file://{tmp_path}/b") as ms:
        disk.free = 17 * MiB
        with pytest.raises(DiskFull, match=r"bytes were to be written, 17,825,792 are free"):
            ms.log("a").append(bytes(16 * MiB))
        ms.log("a").append(bytes(10))


def test_a_store_is_not_opened_to_write_on_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    place = f"file://{tmp_path}/b"
    millstream.open(place).close()
    disk.free = 0
    with pytest.raises(DiskFull, match="Free space on"):
        millstream.open(place)
    millstream.open(place, mode="r").close()


def test_a_copy_onto_a_full_disk_says_so_and_goes_on_with_room(tmp_path: Path, disk: Disk) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        ms.log("a").append_many([b"x" * 1_000] * 1_000)
    source, target = open_engine(tmp_path / "a.db", mode="r"), open_engine(f"file://{tmp_path}/b")
    try:
        disk.free = MiB
        with pytest.raises(DiskFull, match=r"broke off.*goes on with what is there"):
            copy_rows(source, target)
        disk.free = PLENTY
        report = copy_rows(source, target)
        assert report.rows == report.written
    finally:
        source.close()
        target.close()


def test_what_a_folder_refuses_is_not_repeated_without_end(tmp_path: Path) -> None:
    place = tmp_path / "b"
    with millstream.open(f"file://{place}") as ms:
        ms.log("a").append(b"before")
        shutil.rmtree(place / "wal")
        (place / "wal").write_bytes(b"no folder")
        with pytest.raises(OutcomeUnknown, match="object store error"):
            ms.log("a").append(b"doubtful")


def test_the_size_of_a_commit_counts_what_is_spooled() -> None:
    spool = Spool(None)
    spooled = SpooledRows({b"key": spool.add(b"value"), b"k": b"v"})
    assert Commit(spooled).size_bytes() == Commit([(b"key", b"value"), (b"k", b"v")]).size_bytes()
