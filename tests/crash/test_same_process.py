"""A program may use Python's `sqlite3` on the store's file while the same process has the store open."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

import millstream
from millstream.doctor import examine
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.neighbour import has_shared_locks
from tests.crash.test_other_tools import RECORDS, USES, check, check_copy
from tests.crash.test_other_tools import path as path

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not has_shared_locks, reason="this system has no locks of open files"),
]

ROWS = 60
IN_PROCESS = {name: use for name, use in USES.items() if "os.kill" not in use}


def connected(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(path, timeout=30, isolation_level=None))


def values(ms: millstream.Millstream, log: str = "orders") -> list[bytes]:
    return [record.value for record in ms.log(log).read()]


def assert_healthy(path: Path) -> None:
    assert examine(path).healthy


def other_process(path: Path) -> None:
    """Open the file in another process, write to it, and close it as its last user would."""
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
        "c.execute('PRAGMA wal_checkpoint'); c.close()"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=60)


def spelled(path: Path) -> dict[str, Callable[[], sqlite3.Connection]]:
    return {
        "text": lambda: sqlite3.connect(str(path)),
        "path": lambda: sqlite3.connect(path),
        "bytes": lambda: sqlite3.connect(os.fsencode(path)),
        "relative": lambda: sqlite3.connect(os.path.relpath(path)),
        "uri": lambda: sqlite3.connect(f"file:{path}?mode=rw", uri=True),
        "quoted uri": lambda: sqlite3.connect(f"file:{path}".replace("d", "%64"), uri=True),
    }


@pytest.mark.parametrize("spelling", sorted(spelled(Path("x"))))
def test_a_closed_connection_leaves_the_store_as_it_is(tmp_path: Path, spelling: str) -> None:
    path = tmp_path / "store.db"
    with millstream.open(path) as ms:
        for number in range(3):
            with closing(spelled(path)[spelling]()) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS mine (id)")
                connection.execute("INSERT INTO mine VALUES (?)", (number,))
                connection.commit()
                ms.log("orders").append(b"beside")
            ms.log("orders").append(b"after")
        assert values(ms) == [b"beside", b"after"] * 3
    with millstream.open(path) as ms:
        assert values(ms) == [b"beside", b"after"] * 3
        assert ms.sql("SELECT count(*) FROM mine").rows == [(3,)]
    assert_healthy(path)


def test_a_link_to_the_file_is_the_file(tmp_path: Path) -> None:
    path, link = tmp_path / "store.db", tmp_path / "link.db"
    link.symlink_to(path)
    with millstream.open(path) as ms:
        ms.log("orders").append(b"1")
        for _ in range(2):
            with connected(link) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS mine (id)")
            ms.log("orders").append(b"2")
        assert values(ms) == [b"1", b"2", b"2"]


@pytest.mark.parametrize("use", IN_PROCESS)
def test_every_use_beside_the_open_store(path: Path, use: str) -> None:
    copy = path.with_name("copy.db")
    with millstream.open(path) as ms:
        with connected(path) as connection:
            exec(
                IN_PROCESS[use],
                {"connection": connection, "sqlite3": sqlite3, "copy": str(copy)},
            )
            ms.log("orders").append(b"while it is connected")
        assert len(values(ms)) == RECORDS + 1
        (message,) = ms.queue("jobs").claim(1)
        ms.queue("jobs").ack([message])
        assert_healthy(path)
        ms.fold()
        with millstream.open(path) as second:
            second.log("orders").append(b"by another handle")
        assert len(values(ms)) == RECORDS + 2
    check(path, RECORDS + 2)
    check_copy(path, RECORDS)


def test_writers_of_both_libraries_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    failures: list[BaseException] = []

    def stock(number: int) -> None:
        for row in range(ROWS):
            with connected(path) as connection:
                connection.execute("INSERT INTO mine VALUES (?, ?)", (number, row))

    def ours(number: int) -> None:
        for row in range(ROWS):
            ms.log("orders").append(f"{number} {row}".encode())

    def guarded(work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    with millstream.open(path) as ms:
        with connected(path) as connection:
            connection.execute("CREATE TABLE mine (writer, row)")
        threads = [
            threading.Thread(target=guarded, args=(work, number))
            for number in range(2)
            for work in (stock, ours)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert len(values(ms)) == 2 * ROWS
    with connected(path) as connection:
        assert connection.execute("SELECT count(*) FROM mine").fetchone() == (2 * ROWS,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert_healthy(path)


def test_a_transaction_of_the_other_library_stops_our_writers(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    done = threading.Event()
    with millstream.open(path) as ms, connected(path) as connection:
        ms.log("orders").append(b"before")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE mine (id)")

        def append() -> None:
            ms.log("orders").append(b"waited")
            done.set()

        thread = threading.Thread(target=append)
        thread.start()
        assert not done.wait(0.2)
        connection.execute("COMMIT")
        thread.join()
        assert values(ms) == [b"before", b"waited"]


def test_a_checkpoint_of_the_other_library_leaves_our_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with (
        millstream.open(path) as ms,
        closing(SqliteEngine(path)) as engine,
        connected(path) as connection,
    ):
        connection.execute("CREATE TABLE mine (id)")
        connection.execute("INSERT INTO mine VALUES (1)")
        with engine.read() as snapshot:
            last = snapshot.last_seq()
            connection.execute("INSERT INTO mine VALUES (2)")
            ms.log("orders").append(b"1")
            connection.execute("PRAGMA busy_timeout = 10")
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            assert busy, "the log was cut while a snapshot of the store uses it"
            assert snapshot.last_seq() == last


def test_our_checkpoint_leaves_the_snapshot_of_the_other_library(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with (
        millstream.open(path) as ms,
        closing(SqliteEngine(path)) as engine,
        connected(path) as connection,
    ):
        connection.execute("CREATE TABLE mine (id)")
        ms.log("orders").append(b"1")
        connection.execute("BEGIN")
        before = connection.execute("SELECT max(id) FROM millstream_delta").fetchone()
        for _ in range(50):
            ms.log("orders").append(b"x" * 50_000)
        ms.fold()
        engine.checkpoint(nullcontext())
        assert connection.execute("SELECT max(id) FROM millstream_delta").fetchone() == before
        connection.execute("COMMIT")
        assert connection.execute("SELECT max(id) FROM millstream_delta").fetchone() > before


def test_a_connection_outlives_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with connected(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE first (id)")
        for number in range(3):
            with millstream.open(path) as ms:
                ms.log("orders").append(b"1")
            other_process(path)  # it must not take the log away from the connection
            connection.execute("CREATE TABLE IF NOT EXISTS mine (id)")
            connection.execute("INSERT INTO mine VALUES (?)", (number,))
            other_process(path)
    with connected(path) as connection:
        assert connection.execute("SELECT count(*) FROM mine").fetchone() == (3,)
    with millstream.open(path) as ms:
        assert len(values(ms)) == 3
    assert not Path(f"{path}-wal").exists()
    assert_healthy(path)


def test_the_last_close_removes_the_log(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with millstream.open(path) as ms:
        with connected(path) as connection:
            connection.execute("CREATE TABLE mine (id)")
        ms.log("orders").append(b"1")
    assert sorted(os.listdir(tmp_path)) == ["store.db"]


def test_descriptors_do_not_pile_up(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    def once() -> int:
        with millstream.open(path) as ms:
            ms.log("orders").append(b"1")
            with connected(path) as connection:
                connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
        return len(os.listdir("/proc/self/fd"))

    first = once()
    assert [once() for _ in range(4)] == [first] * 4


def test_another_database_of_the_process_is_left_alone(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "store.db") as ms:
        for name in ("other.db", ":memory:", ""):
            with closing(sqlite3.connect(tmp_path / name if name == "other.db" else name)) as other:
                other.execute("CREATE TABLE mine (id)")
                ms.log("orders").append(b"1")
        with pytest.raises(TypeError):
            sqlite3.connect(3.5)  # type: ignore[arg-type]
        assert len(values(ms)) == 3


LEFT_OPEN = """
import sys, threading, millstream

def hold():
    ms = millstream.open(sys.argv[1])
    ms.log("orders").append(b"last")
    is_open.set()
    threading.Event().wait()

is_open = threading.Event()
threading.Thread(target=hold, daemon=True).start()
is_open.wait()
"""


def test_a_store_that_a_thread_still_holds_is_left_whole_when_the_process_ends(
    tmp_path: Path,
) -> None:
    path = tmp_path / "held.db"

    run = subprocess.run([sys.executable, "-c", LEFT_OPEN, str(path)], capture_output=True)

    assert (run.returncode, run.stderr) == (0, b"")
    with millstream.open(path) as ms:
        assert values(ms) == [b"last"]
    assert_healthy(path)
