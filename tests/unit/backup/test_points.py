"""A point is the whole store as of one commit; a place holds the backup of one store alone."""

from __future__ import annotations

import hashlib
import os
import threading
from itertools import count
from pathlib import Path
from typing import cast

import apsw
import msgspec
import pytest
from msgspec.structs import replace

import millstream
from millstream import doctor
from millstream.backup import run as backup_run
from millstream.backup.chunks import ChunkStore, path_of
from millstream.backup.keep import Keep, kept, parse_keep
from millstream.backup.place import LOCK, MARK, BackupPlace
from millstream.backup.point import BackupPoint
from millstream.backup.replay import RestoreMoment
from millstream.backup.restore import restore
from millstream.backup.run import BackupReport, back_up
from millstream.backup.verify import verify
from millstream.clock import SystemClock
from millstream.engine.open import open_engine
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.options import SqliteOptions
from millstream.errors import CannotOpen, CorruptionError, InvalidInput, Overloaded
from millstream.testing import Probe, SimulatedClock
from tests.unit.store.test_store_copy import fill, names_in, rows_of

HOUR_MS = 3_600_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    fill(tmp_path / "a.db")
    return tmp_path / "a.db"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def objects_in(place: Path, folder: str) -> list[Path]:
    return sorted(path for path in (place / folder).rglob("*") if path.is_file())


def content(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in objects_in(place, "")}


def test_a_restored_store_has_everything(source: Path, place: Path, tmp_path: Path) -> None:
    report = back_up(source, place)
    assert report.stored_chunks == report.chunks
    restored = restore(place, tmp_path / "b.db")
    assert (restored.seq, restored.aside) == (report.point.seq, None)
    assert rows_of(tmp_path / "b.db") == rows_of(source)
    assert doctor.examine(tmp_path / "b.db").healthy
    assert names_in(tmp_path) == {"a.db", "b.db", "backup"}
    with millstream.open(tmp_path / "b.db") as ms:
        counts = ms.queue("jobs").info()
        assert (counts.done, counts.in_flight) == (3, 4)
        with ms.transaction() as tx:  # index, trigger and view are there, and at work
            tx.sql('INSERT INTO "the orders" (name) VALUES (?)', ("new",))
        assert ms.sql("SELECT count(*) FROM names").rows == [(201,)]


def test_a_second_run_stores_only_what_is_new(source: Path, place: Path, tmp_path: Path) -> None:
    with millstream.open(source) as ms:
        ms.log("large").append_many([os.urandom(60_000) for _ in range(50)])
    first = back_up(source, place)
    again = back_up(source, place)
    assert (again.stored_chunks, again.chunks) == (0, first.chunks)
    with millstream.open(source) as ms:
        ms.log("orders").append(b"one more")
        third = back_up(source, place)
    assert 0 < third.stored_chunks < third.chunks / 2
    assert third.point.seq == first.point.seq + 1
    for at, expected in ((first.point.seq, b"unfolded"), (third.point.seq, b"one more")):
        target = tmp_path / f"at-{at}.db"
        restore(place, target, at=RestoreMoment(seq=at))
        with millstream.open(target) as ms:
            assert ms.log("orders").last().value == expected


@pytest.mark.parametrize("page_checksums", [False, True])
def test_points_beside_a_writer_are_stores_as_of_one_commit(
    tmp_path: Path, place: Path, page_checksums: bool
) -> None:
    """A small write-ahead log is restarted all the time, while pages are read."""
    options = SqliteOptions(
        page_checksums=page_checksums, wal_bytes_checkpoint=1 << 16, wal_bytes_reset=1 << 18
    )
    stop, wrote = threading.Event(), threading.Event()
    with millstream.open(tmp_path / "a.db", options=options) as ms:
        ms.queue("jobs", sources=["other"])
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE mine (id INTEGER PRIMARY KEY, text TEXT)")

        def write() -> None:
            for number in count(1):
                if stop.is_set():
                    return
                with ms.transaction() as tx:
                    tx.sql("INSERT INTO mine VALUES (?, ?)", (number, "x" * 500))
                    tx.append("written", b"%d" % number * 200)
                    tx.put("jobs", b"%d" % number)
                if number == 20:
                    wrote.set()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert wrote.wait(60)
            reports = [back_up(tmp_path / "a.db", place) for _ in range(5)]
        finally:
            stop.set()
            writer.join()
    for report in reports:
        target = tmp_path / f"{report.point.seq}.db"
        if target.exists():
            continue
        restore(place, target, at=RestoreMoment(seq=report.point.seq))
        assert doctor.examine(target).healthy
        with millstream.open(target) as ms:
            rows = ms.sql("SELECT count(*), max(id) FROM mine").rows[0]
            assert rows[0] == rows[1] == ms.log("written").end_offset()
            assert rows[0] == ms.queue("jobs").info().available


def test_a_killed_run_leaves_chunks_that_the_next_run_finds(
    source: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_run.points, "encode", lambda point: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        back_up(source, place)
    assert not objects_in(place, "points")
    with pytest.raises(CannotOpen, match="no complete point yet"):
        restore(place, tmp_path / "b.db")
    monkeypatch.undo()
    (place / "chunks" / "00").mkdir(exist_ok=True)
    (place / "chunks" / "00" / "torn-1234.part").write_bytes(b"torn")
    assert back_up(source, place).stored_chunks == 0
    assert not list(place.rglob("*.part"))
    restore(place, tmp_path / "b.db")


def test_old_points_and_their_chunks_go(source: Path, place: Path, tmp_path: Path) -> None:
    reports: list[BackupReport] = []
    for number in range(4):
        with millstream.open(source) as ms:
            ms.log("large").append(os.urandom(400_000))
            ms.log("large").truncate(before=number)
            ms.fold()
        reports.append(back_up(source, place, keep=Keep(newest=2)))
    assert [report.deleted_points for report in reports] == [0, 0, 1, 1]
    points = BackupPlace(place).points()
    assert [point.seq for point in points] == [report.point.seq for report in reports[2:]]
    assert verify(place).damage == []
    before = len(objects_in(place, "chunks"))
    back_up(source, place, keep=Keep(newest=1))
    assert len(objects_in(place, "chunks")) < before
    assert verify(place).damage == []
    restore(place, tmp_path / "b.db")


def test_which_points_are_kept() -> None:
    points = [_point(taken_ms=hour * HOUR_MS) for hour in range(5)]
    now_ms = 5 * HOUR_MS
    assert kept(points, Keep(newest=2), now_ms) == points[3:]
    assert kept(points, Keep(age_ms=3 * HOUR_MS), now_ms) == points[2:]
    assert kept(points, Keep(age_ms=1), now_ms) == points[4:]
    # The commits since 1:30 are behind the point of 1:00.
    assert kept(points, Keep(age_ms=7 * HOUR_MS // 2), now_ms) == points[1:]
    assert parse_keep("30") == Keep(newest=30)
    assert parse_keep("7d") == Keep(age_ms=7 * 24 * HOUR_MS)
    for wrong in ("0", "0d", "-1", "often", "7 days", "٣"):
        with pytest.raises(InvalidInput, match="keep is a number"):
            parse_keep(wrong)


def _point(taken_ms: int) -> BackupPoint:
    return BackupPoint(
        store="0" * 16,
        seq=1,
        committed_ms=0,
        taken_ms=taken_ms,
        checked_ms=0,
        page_bytes=4096,
        pages=1,
        has_checksums=False,
        lists=[],
    )


def test_places_that_cannot_hold_the_backup_are_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for place in (tmp_path, source, source / "below"):
        with pytest.raises(InvalidInput, match="lie in each other"):
            back_up(source, place)
    with pytest.raises(CannotOpen, match=r"full has other files \(letter.txt\) and no backup"):
        back_up(source, tmp_path / "full")
    with pytest.raises(CannotOpen, match="is a file, and a backup lies in a folder"):
        back_up(source, tmp_path / "file")
    with pytest.raises(InvalidInput, match="not behind a server"):
        back_up(source, "http://localhost:1")
    assert names_in(tmp_path / "full") == {"letter.txt"}
    assert names_in(tmp_path) == {"a.db", "full", "file"}


def test_a_place_holds_one_store(source: Path, place: Path, tmp_path: Path) -> None:
    back_up(source, place)
    before = content(place)
    fill(tmp_path / "other.db")
    with pytest.raises(CannotOpen, match="holds the backup of another store"):
        back_up(tmp_path / "other.db", place)
    assert content(place) == before


def test_one_run_writes_at_a_time(source: Path, place: Path) -> None:
    back_up(source, place)
    with (
        BackupPlace(place).locked(SystemClock()),
        pytest.raises(Overloaded, match="another run writes"),
    ):
        back_up(source, place)
    back_up(source, place)


def test_a_run_that_was_killed_before_it_marked_the_place_is_repeated(
    source: Path, place: Path
) -> None:
    place.mkdir()
    (place / LOCK).touch()
    (place / f"{MARK}-12345678.part").touch()
    back_up(source, place)
    assert names_in(place) == {LOCK, MARK, "points", "chunks"}


def test_a_damaged_store_gets_no_first_point(source: Path, place: Path) -> None:
    _damage_a_row(source)
    with pytest.raises(CorruptionError, match="is damaged and gets no new point: the row"):
        back_up(source, place)
    assert names_in(place) == {LOCK}  # so that the place is free for another store
    fill(source.with_name("other.db"))
    back_up(source.with_name("other.db"), place)


def test_all_rows_are_checked_once_a_day(source: Path, place: Path) -> None:
    clock = SimulatedClock(1_000)
    back_up(source, place, clock=clock)
    _damage_a_row(source)
    clock.advance(3_600)
    report = back_up(source, place, clock=clock)
    assert report.point.checked_ms < report.point.taken_ms
    clock.advance(24 * 3_600)
    with pytest.raises(CorruptionError):
        back_up(source, place, clock=clock)
    assert len(BackupPlace(place).points()) == 2


def _damage_a_row(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE millstream_record SET crc = crc + 1 WHERE rowid = 3")
    connection.close()


def test_a_missing_store_and_a_store_in_memory_are_refused(tmp_path: Path, place: Path) -> None:
    with pytest.raises(CannotOpen, match="there is no store"):
        back_up(tmp_path / "none.db", place)
    with pytest.raises(InvalidInput, match="memory"):
        back_up(":memory:", place)
    assert not place.exists()


@pytest.mark.requires("s3")
def test_a_store_in_a_bucket_is_restored_to_a_file(tmp_path: Path, place: Path) -> None:
    bucket = f"file://{tmp_path}/bucket"
    with millstream.open(bucket) as ms:
        ms.log("orders").append_many([b"%d" % n for n in range(100)])
    back_up(bucket, place)
    restore(place, tmp_path / "b.db")
    with millstream.open(tmp_path / "b.db") as ms:
        assert [record.value for record in ms.log("orders").read()] == [
            b"%d" % n for n in range(100)
        ]
    with pytest.raises(InvalidInput, match="lie in each other"):
        back_up(bucket, tmp_path / "bucket" / "backup")


def earlier_digest(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()[:32]


def turn_into_version_1(place: Path) -> None:
    """Name all chunks and sign the point as version 1 of the format did."""
    chunks = ChunkStore(BackupPlace(place).objects)
    (path,) = objects_in(place, "points")
    point = BackupPlace(place).points()[0]
    renamed = {}
    for name in chunks.names_in(point.lists):
        data = chunks.get(name)
        renamed[name] = earlier_digest(data)
        keep_chunk(place, renamed[name].hex(), data)
    lists = []
    for name in point.lists:
        names = b"".join(renamed[one] for one in chunks.names_in([name]))
        lists.append(earlier_digest(names).hex())
        keep_chunk(place, lists[-1], names)
        (place / path_of(name)).unlink()
    for name in renamed:
        (place / path_of(name)).unlink()
    text = msgspec.json.encode(replace(point, version=1, lists=lists))
    path.write_bytes(earlier_digest(text).hex().encode() + b"\n" + text)


def keep_chunk(place: Path, name: str, data: bytes) -> None:
    (place / path_of(name)).parent.mkdir(exist_ok=True)
    (place / path_of(name)).write_bytes(b"\x00" + data)


def test_a_backup_of_version_1_is_verified_restored_and_continued(
    source: Path, place: Path, tmp_path: Path
) -> None:
    back_up(source, place)
    turn_into_version_1(place)
    assert verify(place).damage == []
    restore(place, tmp_path / "b.db")
    assert rows_of(tmp_path / "b.db") == rows_of(source)
    back_up(source, place)
    report = verify(place)
    assert (report.points, report.damage) == (2, [])


def test_a_changed_chunk_of_version_1_is_noticed(source: Path, place: Path, tmp_path: Path) -> None:
    back_up(source, place)
    turn_into_version_1(place)
    chunk = max(objects_in(place, "chunks"), key=lambda path: path.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[1_000] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(CorruptionError, match="is not as it was written"):
        restore(place, tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()


def test_the_page_that_sqlite_never_writes_is_not_missed(source: Path) -> None:
    """SQLite leaves out the page at 1 GiB, whose bytes it locks, when a file grows beyond it."""
    with source.open("r+b") as file:
        header = file.read(100)
        page_bytes = int.from_bytes(header[16:18], "big")
        pages = 2**30 // page_bytes - 3
        file.seek(28)
        file.write(pages.to_bytes(4, "big"))
        file.truncate(pages * page_bytes)
    with millstream.open(source) as ms:
        Probe(ms).pause_keeper()
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE large (data BLOB)")
            tx.sql("INSERT INTO large VALUES (randomblob(?))", (20 * page_bytes,))
        engine = cast(SqliteEngine, open_engine(source, mode="r"))
        try:
            with engine.pages() as (snapshot, _):
                lock_page = 2**30 // page_bytes + 1
                assert snapshot.pages > lock_page
                around = snapshot.read(lock_page - 10, 20)
        finally:
            engine.close()
    assert around[10 * page_bytes : 11 * page_bytes] == bytes(page_bytes)
    assert around[11 * page_bytes : 12 * page_bytes] != bytes(page_bytes)
