"""With a follower every commit can be restored, also beside commits, restarts and failures."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

import millstream
from millstream import doctor
from millstream.backup import follow as backup_follow
from millstream.backup.follow import StoreFollower, following
from millstream.backup.keep import Keep
from millstream.backup.objects import FolderObjects
from millstream.backup.place import BackupPlace
from millstream.backup.replay import RestoreMoment
from millstream.backup.restore import restore
from millstream.backup.run import back_up
from millstream.backup.verify import verify
from millstream.clock import Clock
from millstream.engine.open import open_engine
from millstream.engine.sqlite import wal_follower
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.options import SqliteOptions
from millstream.engine.sqlite.page_snapshot import PageSnapshot
from millstream.engine.sqlite.rows import SqliteReader
from millstream.errors import CannotOpen, CorruptionError, InvalidInput, StoreError
from millstream.testing import Probe, SimulatedClock

SMALL = SqliteOptions(wal_bytes_checkpoint=1 << 15, wal_bytes_left=1 << 14, wal_bytes_reset=1 << 17)
"""The write-ahead log is copied and restarted every few commits."""


@contextmanager
def followed(path: Path, place: Path, clock: Clock | None = None) -> Iterator[StoreFollower]:
    engine = cast(SqliteEngine, open_engine(path, mode="r"))
    try:
        with following(engine, BackupPlace(place), clock=clock) as follower:
            yield follower
    finally:
        engine.close()


def restored_values(place: Path, target: Path, seq: int) -> list[bytes]:
    assert restore(place, target, at=RestoreMoment(seq=seq)).seq == seq
    assert doctor.examine(target).healthy
    with millstream.open(target) as ms:
        values = [record.value for record in ms.log("x").read()]
        assert ms.sql("SELECT count(*) FROM mine").rows == [(len(values),)]
    return values


class Writer:
    """Appends a record and a row per commit, and knows what each commit left."""

    def __init__(self, ms: millstream.Millstream) -> None:
        self.ms = ms
        self.values: list[bytes] = []
        self.after: dict[int, list[bytes]] = {}
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE IF NOT EXISTS mine (a)")

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            value = b"%d" % len(self.values) * 100
            with self.ms.transaction() as tx:
                tx.append("x", value)
                tx.sql("INSERT INTO mine VALUES (1)")
            self.values.append(value)
            self.after[Probe(self.ms).store.seq] = list(self.values)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    with millstream.open(tmp_path / "a.db", options=SMALL) as ms:
        yield Writer(ms)


@pytest.fixture
def calm_writer(tmp_path: Path) -> Iterator[Writer]:
    """A writer whose write-ahead log is not restarted by its own commits."""
    with millstream.open(tmp_path / "a.db") as ms:
        yield Writer(ms)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def check_all(writer: Writer, place: Path, tmp_path: Path, *, since: int = 0) -> None:
    """Restore every commit behind one, and compare."""
    assert verify(place).damage == []
    for seq, values in writer.after.items():
        if seq > since:
            assert restored_values(place, tmp_path / f"{seq}.db", seq) == values


@pytest.mark.parametrize("restart_bytes", [1 << 14, 1 << 24])
def test_every_commit_is_restored(
    writer: Writer,
    path: Path,
    place: Path,
    tmp_path: Path,
    restart_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wal_follower, "RESTART_BYTES", restart_bytes)
    with followed(path, place) as follower:
        follower.step()
        first = writer.ms.log("x").end_offset()
        assert first == 0
        for count in (3, 1, 0, 8, 4):
            writer.write(count)
            state = follower.step()
        assert state.seq == max(writer.after)
    assert len(BackupPlace(place).points()) == 1
    check_all(writer, place, tmp_path)
    assert restore(place, tmp_path / "newest.db").seq == state.seq


def test_commits_beside_the_follower_are_complete(
    writer: Writer, path: Path, place: Path, tmp_path: Path
) -> None:
    ended = threading.Event()

    def write() -> None:
        writer.write(150)
        ended.set()

    with followed(path, place) as follower:
        follower.step()
        thread = threading.Thread(target=write)
        thread.start()
        while not ended.is_set():
            follower.step()
        thread.join()
        follower.step()
    assert verify(place).damage == []
    seqs = sorted(writer.after)
    for seq in (seqs[0], seqs[70], seqs[-2], seqs[-1]):
        assert restored_values(place, tmp_path / f"{seq}.db", seq) == writer.after[seq]


def test_a_time_means_the_newest_commit_at_it(path: Path, place: Path, tmp_path: Path) -> None:
    clock = SimulatedClock(1_000_000)
    with millstream.open(path, clock=clock) as ms:
        ms.log("x").append(b"0")
        with followed(path, place, clock) as follower:
            follower.step()
            for number in range(1, 4):
                clock.advance(60)
                ms.log("x").append(b"%d" % number)
            follower.step()
    for seconds, count in ((0, 1), (59, 1), (60, 2), (179, 3), (180, 4), (10_000, 4)):
        target = tmp_path / f"{seconds}.db"
        restore(place, target, at=RestoreMoment(time_ms=1_000_000 + seconds * 1_000))
        with millstream.open(target, mode="r") as ms:
            assert ms.log("x").end_offset() == count


def test_a_time_before_a_commit_that_shrinks_the_file(
    path: Path, place: Path, tmp_path: Path
) -> None:
    clock = SimulatedClock(1_000_000)
    with closing(apsw.Connection(str(path))) as application:
        application.pragma("auto_vacuum", 1)
        application.execute("CREATE TABLE mine (a)")
    with millstream.open(path, clock=clock, adopt=True) as ms:
        Probe(ms).pause_keeper()
        with followed(path, place, clock) as follower:
            follower.step()
            with ms.transaction() as tx:
                tx.append("x", b"kept")
                for _ in range(50):
                    tx.sql("INSERT INTO mine VALUES (randomblob(9000))")
            rows = ms.sql("SELECT a FROM mine").rows
            clock.advance(60)
            with ms.transaction() as tx:
                tx.append("x", b"later")
                tx.sql("DELETE FROM mine WHERE rowid % 2 = 0")
            follower.step()
    restore(place, tmp_path / "b.db", at=RestoreMoment(time_ms=1_030_000))
    assert doctor.examine(tmp_path / "b.db").healthy
    with millstream.open(tmp_path / "b.db") as ms:
        assert [record.value for record in ms.log("x").read()] == [b"kept"]
        assert ms.sql("SELECT a FROM mine").rows == rows


def test_a_follower_that_starts_again_continues_its_chain(
    calm_writer: Writer, path: Path, place: Path, tmp_path: Path
) -> None:
    calm_writer.write()
    since = max(calm_writer.after)
    for _ in range(3):
        with followed(path, place) as follower:
            follower.step()
            calm_writer.write(2)
            follower.step()
        calm_writer.write()  # while no follower runs
    with followed(path, place) as follower:
        follower.step()
    assert len(BackupPlace(place).points()) == 1
    check_all(calm_writer, place, tmp_path, since=since)


def test_a_restarted_log_begins_a_new_chain_and_the_gap_is_named(
    calm_writer: Writer, path: Path, place: Path, tmp_path: Path
) -> None:
    with followed(path, place) as follower:
        follower.step()
        calm_writer.write()
        before = follower.step().seq
    calm_writer.write()
    missing = max(calm_writer.after)
    calm_writer.write()
    other = apsw.Connection(str(path))
    assert other.pragma("journal_mode") == "wal"
    other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    other.close()
    with followed(path, place) as follower:
        after = follower.step().seq
        calm_writer.write()
        newest = follower.step().seq
    assert len(BackupPlace(place).points()) == 2
    pattern = f"earlier commit is {before}, the nearest later commit is {after}"
    with pytest.raises(InvalidInput, match=pattern):
        restore(place, tmp_path / "b.db", at=RestoreMoment(seq=missing))
    assert restored_values(place, tmp_path / "c.db", newest) == calm_writer.values


@pytest.mark.parametrize("follows_between", [True, False])
def test_files_that_were_copied_back_begin_a_new_chain(
    path: Path, place: Path, tmp_path: Path, follows_between: bool
) -> None:
    """As after the snapshot of a virtual machine: the log has its old header, and other frames."""
    copies = tmp_path / "copies"
    with millstream.open(path) as ms:
        Probe(ms).pause_keeper()
        writer = Writer(ms)
        writer.write(3)
        with followed(path, place) as follower:
            follower.step()
        copies.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", copies / f"a.db{suffix}")
        writer.write(4)
        if follows_between:
            with followed(path, place) as follower:
                follower.step()
        else:
            back_up(path, place)
    for copied in copies.iterdir():
        shutil.copy(copied, tmp_path)
    with millstream.open(path) as ms:
        Probe(ms).pause_keeper()
        writer = Writer(ms)
        writer.values = [record.value for record in ms.log("x").read()]
        ms.log("another").append_many([b"other" * 200] * 30)
        writer.write(5)
        with followed(path, place) as follower:
            assert follower.step().seq == max(writer.after)
            writer.write(2)
            follower.step()
        assert len(BackupPlace(place).points()) == (2 if follows_between else 3)
        assert restored_values(place, tmp_path / "b.db", max(writer.after)) == writer.values


def test_points_of_a_timer_do_not_break_a_chain(
    writer: Writer, path: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new point begins a chain, and the chain before it reaches up to it."""
    monkeypatch.setattr(StoreFollower, "_is_long", lambda self, chain: True)
    with followed(path, place) as follower:
        follower.step()
        for _ in range(4):
            writer.write(2)
            follower.step()
    assert len(BackupPlace(place).points()) == 6
    check_all(writer, place, tmp_path)


def test_a_point_that_fails_does_not_stop_the_chain_before_it(
    writer: Writer, path: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []

    def refuse(*_: object) -> bool:
        checks.append("damaged")
        raise CorruptionError("a row is damaged", what="row", where="")

    clock = SimulatedClock(10**12)
    with followed(path, place, clock) as follower:
        since = follower.step().seq
        clock.advance(25 * 3600)  # a new point is due
        monkeypatch.setattr(backup_follow, "WAITING_BYTES_MAX", 1)
        monkeypatch.setattr(SqliteEngine, "verify", refuse)
        for _ in range(3):
            writer.write(2)
            with pytest.raises(CorruptionError, match="damaged and gets no new point"):
                follower.step()
            assert follower.state == (max(writer.after), clock.wall_ms())
        assert checks == ["damaged"]  # the check reads the whole store: not again at once
        clock.advance(backup_follow.CHECK_AGAIN_S)
        monkeypatch.undo()
        writer.write()
        follower.step()
        assert len(follower.points) == 2
    check_all(writer, place, tmp_path, since=since)


class Disk:
    """A disk of which one read fails: read number `failing_read`, counted from the last setting."""

    failing_read = 0


class FaultyConnection:
    """A connection to SQLite that reads from a faulty disk."""

    def __init__(self, connection: apsw.Connection, disk: Disk) -> None:
        self._connection, self._disk = connection, disk

    def read(self, *place: Any) -> tuple[bool, bytes]:
        self._disk.failing_read -= 1
        if self._disk.failing_read == 0:
            raise apsw.IOError("the disk does not answer")
        return self._connection.read(*place)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("failing_read", range(1, 11))
def test_a_read_that_fails_is_repeated_and_leaves_no_hole(
    writer: Writer,
    path: Path,
    place: Path,
    tmp_path: Path,
    failing_read: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reads of a step look at the write-ahead log, copy its frames and restart it."""
    disk = Disk()

    def on_disk(pages: PageSnapshot) -> wal_follower.WalFollower:
        connect = pages.connect
        pages.connect = lambda: cast(apsw.Connection, FaultyConnection(connect(), disk))
        return wal_follower.WalFollower(pages)

    monkeypatch.setattr(wal_follower, "RESTART_BYTES", 1)
    monkeypatch.setattr(backup_follow, "WalFollower", on_disk)
    with followed(path, place) as follower:
        since = follower.step().seq
        writer.write(2)
        disk.failing_read = failing_read
        with pytest.raises(StoreError, match="does not answer"):
            follower.step()
        writer.write(4)
        follower.step()
        writer.write()
        follower.step()
    assert len(BackupPlace(place).points()) == 1
    check_all(writer, place, tmp_path, since=since)


def test_a_commit_that_is_too_large_to_copy_begins_a_new_chain(
    calm_writer: Writer, path: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_follower, "COPY_BYTES_MAX", 1 << 18)
    with followed(path, place) as follower:
        follower.step()
        calm_writer.write(2)
        follower.step()
        with calm_writer.ms.transaction() as tx:
            tx.append("large", b"x" * (1 << 19))
        calm_writer.write(1)
        follower.step()
        calm_writer.write(1)
        seq = follower.step().seq
    assert len(BackupPlace(place).points()) == 2
    assert verify(place).damage == []
    assert restored_values(place, tmp_path / "b.db", seq) == calm_writer.values


def test_frames_are_copied_before_a_restart_could_hide_them(
    calm_writer: Writer, path: Path
) -> None:
    calm_writer.write()
    with closing(open_engine(path, mode="r")) as engine:
        paged = cast(SqliteEngine, engine)
        with paged.pages() as (pages, _):
            start = pages.position
        calm_writer.write()
        with closing(apsw.Connection(str(path))) as other:
            assert other.pragma("journal_mode") == "wal"
            total, copied = other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            assert total == copied
        with paged.pages() as (pages, _):
            follower = wal_follower.WalFollower(pages, position=start)
            calm_writer.write()  # restarts the log
        with closing(follower):
            pieces = follower.copy()
    assert [(piece.header == start.header, piece.first) for piece in pieces] == [
        (True, start.frames + 1),
        (False, 1),
    ]


def test_a_transaction_that_ended_by_itself_is_a_gap(calm_writer: Writer, path: Path) -> None:
    """SQLite ends a transaction that cannot read a page, and the log may be restarted unseen."""
    with closing(open_engine(path, mode="r")) as engine:
        with cast(SqliteEngine, engine).pages() as (pages, _):
            follower = wal_follower.WalFollower(pages)
        with closing(follower):
            cast(SqliteReader, follower.snapshot).end()
            with pytest.raises(wal_follower.WalGap):
                follower.copy()


def test_a_place_that_fails_gets_the_commits_later(
    writer: Writer, path: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with followed(path, place) as follower:
        follower.step()
        writer.write(2)

        def fail(*arguments: object, **named: object) -> int:
            raise StoreError("the place does not answer")

        with monkeypatch.context() as patch:
            patch.setattr(backup_follow, "store_segment", fail)
            with pytest.raises(StoreError, match="does not answer"):
                follower.step()
            writer.write(2)
            patch.setattr(backup_follow, "WAITING_BYTES_MAX", 1)
            with pytest.raises(StoreError, match="does not answer"):
                follower.step()
        since = max(writer.after)
        follower.step()  # with a new point: the log did not wait longer
        writer.write(2)
        follower.step()
    assert len(BackupPlace(place).points()) == 2
    check_all(writer, place, tmp_path, since=since - 1)


def test_a_segment_whose_put_failed_after_it_was_stored_breaks_no_chain(
    writer: Writer, path: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(objects: FolderObjects) -> None:
        raise CannotOpen("the folder cannot be synced")

    with followed(path, place) as follower:
        follower.step()
        since = follower.state.seq if follower.state else 0
        writer.write(2)
        with monkeypatch.context() as patch:
            patch.setattr(FolderObjects, "sync", fail)
            with pytest.raises(CannotOpen):
                follower.step()
        writer.write()
        follower.step()
        writer.write()
        newest = follower.step().seq
    assert len(list((place / "segments").rglob("000000000-*"))) == 2
    assert restore(place, tmp_path / "newest.db").seq == newest
    check_all(writer, place, tmp_path, since=since)


def test_a_log_that_cannot_be_restarted_loses_no_frame(
    path: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_follower, "RESTART_BYTES", 1 << 14)
    with (
        millstream.open(path) as ms,
        closing(open_engine(path, mode="r", options=SqliteOptions(busy_timeout_ms=1))) as engine,
        following(cast(SqliteEngine, engine), BackupPlace(place)) as follower,
    ):
        writer = Writer(ms)
        since = follower.step().seq
        writer.write(8)
        with closing(apsw.Connection(str(path))) as other:
            other.set_busy_timeout(60_000)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(CannotOpen, match="locked"):
                follower.step()
        writer.write()
        follower.step()
    check_all(writer, place, tmp_path, since=since)


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_segment_ends_what_can_be_restored(
    writer: Writer, path: Path, place: Path, tmp_path: Path, damage: str
) -> None:
    with followed(path, place) as follower:
        follower.step()
        seqs = []
        for _ in range(3):
            writer.write()
            seqs.append(follower.step().seq)
    second = sorted((place / "segments").rglob("0*-*-*"))[1]
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(data)
    if damage == "missing":
        second.unlink()
    (text,) = verify(place).damage
    assert f"so commits after {seqs[0]} cannot be restored; --at {seqs[0]} restores" in text
    with pytest.raises(CorruptionError, match=f"commits after {seqs[0]} cannot be restored"):
        restore(place, tmp_path / "b.db")
    assert restored_values(place, tmp_path / "c.db", seqs[0]) == writer.after[seqs[0]]


def test_files_of_a_file_manager_in_the_place_are_left_alone(
    writer: Writer, path: Path, place: Path, tmp_path: Path
) -> None:
    with followed(path, place) as follower:
        follower.step()
        writer.write(2)
        seq = follower.step().seq
        folders = [place, *(entry for entry in place.rglob("*") if entry.is_dir())]
        for folder in folders:
            for name in (".DS_Store", "Thumbs.db", "~new-0.json"):
                (folder / name).write_bytes(b"of another program")
        assert verify(place).damage == []
        assert restored_values(place, tmp_path / "b.db", seq) == writer.values
        writer.write(1)
        follower.step()
    assert restore(place, tmp_path / "c.db").seq == seq + 1
    assert back_up(path, place, keep=Keep(newest=1)).deleted_points == 1
    assert restored_values(place, tmp_path / "d.db", seq + 1) == writer.values


def test_pages_with_checksums_are_replayed_with_checksums(
    path: Path, place: Path, tmp_path: Path
) -> None:
    with millstream.open(path, options=SqliteOptions(page_checksums=True)) as ms:
        writer = Writer(ms)
        with followed(path, place) as follower:
            follower.step()
            writer.write(5)
            follower.step()
        check_all(writer, place, tmp_path)


def test_old_chains_go_with_their_points(writer: Writer, path: Path, place: Path) -> None:
    with followed(path, place) as follower:
        follower.step()
        writer.write()
        follower.step()
    assert list((place / "segments").rglob("0*-*-*"))
    back_up(path, place, keep=backup_follow.Keep(newest=1))
    assert not list((place / "segments").rglob("0*-*-*"))
    assert verify(place).damage == []
