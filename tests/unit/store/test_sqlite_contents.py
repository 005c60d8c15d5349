"""Promise: a store whose file was overwritten in place acknowledges nothing any more.

The name and the inode stay the same then, and SQLite would mix the pages of two files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import apsw
import pytest

import millstream
from millstream.doctor import examine
from millstream.engine.sqlite.identity import Contents, identity
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


def smaller_with_more_commits(folder: Path) -> bytes:
    fill(folder / "other.db", 1)
    commits = (f"PRAGMA user_version = {number}" for number in range(1, 400))
    run_tool(folder / "other.db", "PRAGMA synchronous = OFF", *commits)
    return (folder / "other.db").read_bytes()


def larger(folder: Path) -> bytes:
    return fill(folder / "other.db", 5_000)


def older(folder: Path) -> bytes:
    return (folder / "backup.db").read_bytes()


def text(_: Path) -> bytes:
    return b"Dear diary,\n" * 100_000


def nothing(_: Path) -> bytes:
    return b""


@pytest.mark.parametrize("make", [smaller, smaller_with_more_commits, larger, older, text, nothing])
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


class InterruptedConnection(apsw.Connection):
    """A connection during whose next read of the file something else happens first."""

    def __init__(self, path: Path, meanwhile: Callable[[], object]) -> None:
        super().__init__(str(path))
        self._meanwhile = [meanwhile]

    def read(self, schema: str, which: int, offset: int, amount: int) -> tuple[bool, bytes]:
        while self._meanwhile:
            self._meanwhile.pop()()
        return super().read(schema, which, offset, amount)


@pytest.mark.parametrize("is_checked", [False, True])
def test_a_checkpoint_during_a_check_is_no_alarm(tmp_path: Path, is_checked: bool) -> None:
    """The checkpoint of another thread, with its own check, comes between the steps of a check."""
    path = tmp_path / "s.db"
    fill(path, 1)
    connection = apsw.Connection(str(path))
    contents = Contents(str(path), identity(str(path)))

    def grow() -> None:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS t (x); INSERT INTO t VALUES (zeroblob(99999))"
        )
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def meanwhile() -> None:
        grow()
        if is_checked:
            assert contents.check(connection)

    grow()
    assert contents.check(connection)
    grow()
    interrupted = InterruptedConnection(path, meanwhile)
    assert contents.check(interrupted)
    assert contents.check(connection)
    interrupted.close()
    connection.close()


@pytest.mark.parametrize("statement", ["PRAGMA incremental_vacuum(100)", "VACUUM"])
@pytest.mark.parametrize("turns", [1, 3])
def test_a_file_that_another_tool_has_shrunk_is_no_alarm(
    tmp_path: Path, statement: str, turns: int
) -> None:
    path, clock = tmp_path / "s.db", SimulatedClock()
    with millstream.open(path, clock=clock) as ms:
        probe = Probe(ms)
        for turn in range(turns):
            ms.log("a").append_many([b"%0999d" % number for number in range(1_000)])
            ms.log("a").truncate(before=ms.log("a").end_offset())
            probe.upkeep()
            ms.fold()
            probe.upkeep()
            run_tool(path, "PRAGMA wal_checkpoint(TRUNCATE)")
            clock.advance(LATER_S)
            ms.log("b").append(b"seen")  # the handle knows the size of the file
            size = path.stat().st_size
            clock.advance(LATER_S)
            run_tool(path, statement, "PRAGMA wal_checkpoint(TRUNCATE)")
            assert path.stat().st_size < size
            assert ms.log("b").append(b"stored") == 2 * turn + 1
            clock.advance(LATER_S)
    assert examine(path).healthy


@pytest.mark.parametrize("has_reader", [False, True])
def test_a_file_that_another_tool_has_shrunk_and_filled_again_is_no_alarm(
    tmp_path: Path, has_reader: bool
) -> None:
    """The file is smaller, and the database in the write-ahead log is larger than before."""
    path, clock = tmp_path / "s.db", SimulatedClock()
    with millstream.open(path, clock=clock) as ms:
        probe = Probe(ms)
        probe.pause_keeper()
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE mine (b)")
        ms.log("a").append_many([b"%0999d" % number for number in range(1_000)])
        ms.log("a").truncate(before=ms.log("a").end_offset())
        probe.upkeep()
        ms.fold()
        probe.upkeep()
        run_tool(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        clock.advance(LATER_S)
        ms.log("b").append(b"seen")  # the handle knows the size of the file
        before = path.stat().st_size
        clock.advance(LATER_S)
        run_tool(path, "PRAGMA incremental_vacuum", "PRAGMA wal_checkpoint")
        assert path.stat().st_size < before
        # A reader behind the checkpoint keeps the write-ahead log from being restarted.
        with probe.store.engine.read() if has_reader else nullcontext() as snapshot:
            if snapshot is not None:
                snapshot.last_seq()
            run_tool(
                path,
                "PRAGMA wal_autocheckpoint = 0",
                f"INSERT INTO mine VALUES (zeroblob({2 * before}))",
            )
            assert path.stat().st_size < before
            assert ms.log("b").append(b"stored") == 1
            clock.advance(LATER_S)
            assert ms.log("b").append(b"stored too") == 2
    assert examine(path).healthy


def run_tool(path: Path, *statements: str) -> None:
    """Use the file by another program, without Millstream."""
    program = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)\n"
        "for statement in sys.argv[2:]: connection.executescript(statement)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path), *statements], check=True, timeout=120)


def test_a_file_that_is_touched_or_copied_from_is_no_alarm(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", SimulatedClock()
    fill(path, 100)
    with millstream.open(path, clock=clock) as ms:
        ms.log("a").append(b"one")
        clock.advance(LATER_S)
        path.touch()
        shutil.copy(path, tmp_path / "copy.db")
        assert ms.log("a").append(b"two") == 101
