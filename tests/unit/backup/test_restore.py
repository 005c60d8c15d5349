"""A restore verifies everything before it replaces anything, and never overwrites unasked."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import millstream
from millstream import doctor
from millstream.backup import restore as backup_restore
from millstream.backup.keep import Keep
from millstream.backup.place import BackupPlace
from millstream.backup.replay import RestoreMoment
from millstream.backup.restore import restore
from millstream.backup.run import back_up
from millstream.backup.verify import verify
from millstream.engine.sqlite.unfinished_file import partial_file
from millstream.errors import CannotOpen, CorruptionError, DiskFull, InvalidInput
from tests.unit.store.test_store_copy import fill, names_in, rows_of


@pytest.fixture
def source(tmp_path: Path) -> Path:
    fill(tmp_path / "a.db")
    return tmp_path / "a.db"


@pytest.fixture
def place(source: Path, tmp_path: Path) -> Path:
    back_up(source, tmp_path / "backup")
    return tmp_path / "backup"


@pytest.fixture
def chunk(place: Path) -> Path:
    """A chunk of the only point: the largest object."""
    return max((place / "chunks").rglob("*"), key=lambda path: path.stat().st_size)


def test_a_partial_file_that_another_run_removes_is_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may end between the moments in which the next one opens the file and locks it."""
    target, flock = tmp_path / "b.db", fcntl.flock
    before = partial_file(target, ".part", shown=target, work="copy")
    before.__enter__()

    def end_first(descriptor: int, operation: int) -> None:
        before.__exit__(None, None, None)
        flock(descriptor, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", end_first)
        with (
            pytest.raises(CannotOpen, match="another copy"),
            partial_file(target, ".part", shown=target, work="copy"),
        ):
            pass
    with partial_file(target, ".part", shown=target, work="copy") as partial:
        assert partial.exists()


def test_a_store_is_replaced_only_on_request_and_kept_aside(
    source: Path, place: Path, tmp_path: Path
) -> None:
    with millstream.open(source) as ms:
        ms.log("orders").append(b"later")
    later = rows_of(source)
    with pytest.raises(CannotOpen, match="is there already, and was left as it is"):
        restore(place, source)
    assert rows_of(source) == later
    report = restore(place, source, replace=True)
    assert report.aside == tmp_path / "a.db.aside-1"
    assert rows_of(report.aside) == later
    with millstream.open(source) as ms:
        assert ms.log("orders").last().value == b"unfolded"
        ms.log("orders").append(b"goes on")
    assert restore(place, source, replace=True).aside == tmp_path / "a.db.aside-2"


def test_the_new_file_has_the_rights_of_the_replaced_file(source: Path, place: Path) -> None:
    source.chmod(0o664)
    owner = (1_234, 1_235) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(source, *owner)
    restore(place, source, replace=True)
    status = source.stat()
    assert stat.S_IMODE(status.st_mode) == 0o664
    assert (status.st_uid, status.st_gid) == owner


def test_an_open_store_is_not_replaced(source: Path, place: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    with millstream.open(source) as ms:
        ms.log("orders").append(b"later")
        with pytest.raises(CannotOpen, match="is in use, and was left as it is"):
            restore(place, source, replace=True, heard=lambda stage, *_: stages.append(stage))
        assert stages == []  # refused before anything was built
        assert ms.log("orders").last().value == b"later"
    assert names_in(tmp_path) == {"a.db", "backup"}
    restore(place, source, replace=True)


def test_a_damaged_store_is_replaced_and_kept_with_its_log(
    source: Path, place: Path, tmp_path: Path
) -> None:
    with source.open("r+b") as file:
        file.write(b"\0" * 16)
    Path(f"{source}-wal").write_bytes(b"the log of a dead process")
    report = restore(place, source, replace=True)
    assert report.aside is not None
    assert report.aside.read_bytes()[:16] == b"\0" * 16
    assert Path(f"{report.aside}-wal").read_bytes() == b"the log of a dead process"
    assert not Path(f"{source}-wal").exists()
    assert doctor.examine(source).healthy


def test_a_file_that_is_no_store_is_not_replaced(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "letter.txt"
    target.write_text("dear")
    with pytest.raises(CannotOpen, match="is not a Millstream store"):
        restore(place, target, replace=True)
    assert target.read_text() == "dear"


def test_targets_that_cannot_be_made_are_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="does not exist; create it first"):
        restore(place, tmp_path / "none" / "b.db")
    with pytest.raises(CannotOpen, match="is a directory"):
        restore(place, place)
    (tmp_path / "b.db-wal").write_bytes(b"of another store")
    with pytest.raises(CannotOpen, match="would spoil the restored store"):
        restore(place, tmp_path / "b.db")
    for target in ("s3://bucket/store", "http://localhost:1", ":memory:"):
        with pytest.raises(InvalidInput, match="is restored to a file"):
            restore(place, target)


def test_a_place_without_a_backup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="there is no backup at"):
        restore(tmp_path, tmp_path / "b.db")
    with pytest.raises(CannotOpen, match="there is no backup at"):
        restore(tmp_path / "none", tmp_path / "b.db")
    assert names_in(tmp_path) == set()


def test_a_commit_that_is_not_covered_is_refused_with_its_neighbours(
    source: Path, place: Path, tmp_path: Path
) -> None:
    first = BackupPlace(place).points()[0]
    with millstream.open(source) as ms:
        for number in range(3):
            ms.log("orders").append(b"%d" % number)
        back_up(source, place)
    wanted = first.seq + 1
    with pytest.raises(
        InvalidInput,
        match=f"earlier commit is {first.seq}, the nearest later commit is {first.seq + 3}",
    ):
        restore(place, tmp_path / "b.db", at=RestoreMoment(seq=wanted))
    with pytest.raises(InvalidInput, match="begins later"):
        restore(place, tmp_path / "b.db", at=RestoreMoment(time_ms=1_000))
    assert (
        restore(place, tmp_path / "b.db", at=RestoreMoment(time_ms=first.committed_ms)).seq
        == first.seq
    )
    assert restore(place, tmp_path / "c.db", at=RestoreMoment(time_ms=2**50)).seq == first.seq + 3


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_chunk_is_found_before_anything_is_replaced(
    source: Path, place: Path, tmp_path: Path, chunk: Path, damage: str
) -> None:
    before = rows_of(source)
    data = bytearray(chunk.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
        chunk.write_bytes(data)
    elif damage == "cut":
        chunk.write_bytes(data[:-1])
    else:
        chunk.unlink()
    with pytest.raises(CorruptionError, match="is damaged: the chunk"):
        restore(place, source, replace=True)
    assert rows_of(source) == before
    assert names_in(tmp_path) == {"a.db", "backup"}
    report = verify(place)
    assert len(report.damage) == 1
    assert "cannot be restored" in report.damage[0]


def test_a_damaged_point_is_reported_and_others_are_restored(
    source: Path, place: Path, tmp_path: Path
) -> None:
    (first,) = (place / "points").iterdir()
    with millstream.open(source) as ms:
        ms.log("orders").append(b"later")
    back_up(source, place)
    text = first.read_bytes()
    first.write_bytes(text.replace(b'"pages":', b'"pages":1'))
    assert [("is not as it was written" in text) for text in verify(place).damage] == [True]
    restore(place, tmp_path / "b.db")
    first.write_bytes(b"")
    assert len(verify(place).damage) == 1


def test_a_damaged_newest_point_is_not_passed_over(
    source: Path, place: Path, tmp_path: Path
) -> None:
    (first,) = BackupPlace(place).points()
    with millstream.open(source) as ms:
        ms.log("orders").append(b"later")
    newest = place / back_up(source, place).point.name
    newest.write_bytes(newest.read_bytes()[:-1])
    later = RestoreMoment(time_ms=2**50)
    for number, at in enumerate((None, later)):
        with pytest.raises(CorruptionError, match=f"; --at {first.seq} restores the newest"):
            restore(place, tmp_path / f"{number}.db", at=at)
    assert restore(place, tmp_path / "b.db", at=RestoreMoment(seq=first.seq)).seq == first.seq
    back_up(source, place)
    assert restore(place, tmp_path / "c.db").seq == first.seq + 1


def test_a_point_that_is_deleted_during_a_check_is_no_damage(source: Path, place: Path) -> None:
    with millstream.open(source) as ms:
        ms.log("orders").append(os.urandom(600_000))
    back_up(source, place)

    def delete_others(_stage: str, number: int, _count: int) -> None:
        if not number:
            with millstream.open(source) as ms:
                ms.log("orders").append(b"later")
            back_up(source, place, keep=Keep(newest=1))

    report = verify(place, heard=delete_others)
    assert (report.damage, report.damaged_chunks, report.points) == ([], [], 0)
    assert verify(place).points == 1


def test_the_backup_of_a_newer_version_is_refused(place: Path, tmp_path: Path) -> None:
    mark = place / "millstream-backup.json"
    newer = {**msgspec.json.decode(mark.read_bytes()), "version": 9}
    mark.write_bytes(msgspec.json.encode(newer))
    with pytest.raises(CannotOpen, match="install a newer version"):
        restore(place, tmp_path / "b.db")


@pytest.mark.parametrize("spare_bytes", [-1_000_000, 0])
def test_a_full_disk_is_refused_before_anything_is_written(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare_bytes: int
) -> None:
    (point,) = BackupPlace(place).points()
    free_bytes = max(1_000, point.file_bytes + spare_bytes)
    usage = SimpleNamespace(total=10_000_000, used=9_000, free=free_bytes)
    monkeypatch.setattr(backup_restore.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(DiskFull, match=f"has {free_bytes:,} bytes free"):
        restore(place, tmp_path / "b.db")
    assert names_in(tmp_path) == {"a.db", "backup"}


def test_a_disk_that_fills_up_leaves_nothing(
    source: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, data: bytes, start: int) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(backup_restore.os, "pwrite", fail)
    with pytest.raises(DiskFull, match="the disk is full, and what was written is removed"):
        restore(place, tmp_path / "b.db")
    assert names_in(tmp_path) == {"a.db", "backup"}


def test_a_deep_check_examines_the_restored_store(place: Path) -> None:
    seen: list[bool] = []

    def examine(path: Path) -> list[str]:
        seen.append(doctor.examine(path).healthy)
        return ["found"]

    assert verify(place, examine=examine).damage == ["found"]
    assert seen == [True]
