"""Every ordinary use of a store's file by a stock SQLite leaves a store that works and is healthy.

Each use is tried on a store that is closed, one whose writer was killed (`kill -9`), and one that is
open in another process meanwhile. The tool is Python's `sqlite3`, which is another build of SQLite, in
a process of its own. The handle that was open goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millstream
from millstream.doctor import examine

pytestmark = pytest.mark.timeout(120)

WRITER = """
import os, sys
import millstream

ms = millstream.open(sys.argv[1])
ms.log("orders").append(b"from the writer")
ms.queue("jobs").put({"n": 1000})
print("ready", flush=True)
for line in sys.stdin:
    ms.log("orders").append(b"meanwhile")
    (message,) = ms.queue("jobs").claim(1)
    ms.queue("jobs").ack([message])
    ms.fold()
    assert [record.offset for record in ms.log("orders").read()] == list(range(len(ms.log("orders"))))
    print("went on", flush=True)
ms.close()
"""

TOOL = """
import sqlite3, sys
path, copy, use = sys.argv[1:]
connection = sqlite3.connect(path, timeout=30, isolation_level=None)
exec(use)
connection.close()
"""

USES = {
    "select": "connection.execute('SELECT count(*) FROM sqlite_schema').fetchall()\n"
    "connection.execute('SELECT count(*) FROM millstream_record').fetchall()",
    "insert": "connection.executemany('INSERT INTO mine VALUES (?, ?)', [(i, 'x' * i) for i in range(900)])",
    "alter": "connection.execute('ALTER TABLE mine ADD COLUMN more')\n"
    "connection.execute('ALTER TABLE mine RENAME COLUMN text TO words')",
    "vacuum": "connection.execute('VACUUM')",
    "checkpoint": "connection.execute('PRAGMA wal_checkpoint').fetchall()",
    "backup": "target = sqlite3.connect(copy)\nconnection.backup(target)\ntarget.close()",
    "vacuum into": "connection.execute('VACUUM INTO ?', (copy,))",
    # Variants of these.
    "truncating checkpoint": "connection.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchall()",
    "reindex": "connection.execute('REINDEX')",
    "analyze": "connection.execute('ANALYZE')",
    "schema": "connection.executescript('CREATE INDEX by_text ON mine (text);"
    "CREATE VIEW seen AS SELECT text FROM mine;"
    "CREATE TRIGGER kept AFTER INSERT ON mine BEGIN DELETE FROM mine WHERE id < 0; END;')",
    "many tables": "connection.executescript(';'.join("
    "f'CREATE TABLE t{i} (a_column_with_a_long_name, another_one)' for i in range(90)))",
    "drop": "connection.execute('DROP TABLE mine')",
    "unsynced": "connection.execute('PRAGMA synchronous = OFF')\n"
    "connection.execute('INSERT INTO mine VALUES (1, 2)')",
    "user version": "connection.execute('PRAGMA user_version = 7')",
    "application id": "connection.execute('PRAGMA application_id = 7')",
    "shrunk and grown": "connection.execute('CREATE TABLE big (b)')\n"
    "connection.execute('INSERT INTO big VALUES (zeroblob(9000000))')\n"
    "connection.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchall()\n"
    "connection.execute('DROP TABLE big')\nconnection.execute('VACUUM')\n"
    "connection.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchall()\n"
    "connection.execute('INSERT INTO mine VALUES (1, zeroblob(90000))')",
    "rolled back": "connection.execute('BEGIN')\n"
    "connection.execute('INSERT INTO mine VALUES (1, 2)')\nconnection.execute('ROLLBACK')",
    "killed in a transaction": "import os\nconnection.execute('PRAGMA cache_size = 1')\n"
    "connection.execute('BEGIN')\n"
    "connection.execute('INSERT INTO mine VALUES (1, zeroblob(900000))')\nos.kill(os.getpid(), 9)",
}

ALONE = {  # SQLite itself refuses these while others have the file open
    "rollback journal": "connection.execute('PRAGMA journal_mode = DELETE').fetchall()\n"
    "connection.execute('INSERT INTO mine VALUES (1, 2)')",
    "rollback journal and back": "connection.execute('PRAGMA journal_mode = DELETE').fetchall()\n"
    "connection.execute('VACUUM')\nconnection.execute('PRAGMA journal_mode = WAL').fetchall()",
    "page size": "connection.execute('PRAGMA journal_mode = DELETE').fetchall()\n"
    "connection.execute('PRAGMA page_size = 8192')\nconnection.execute('VACUUM')",
    "small pages": "connection.execute('PRAGMA journal_mode = DELETE').fetchall()\n"
    "connection.execute('PRAGMA page_size = 512')\nconnection.execute('VACUUM')",
    "auto vacuum": "connection.execute('PRAGMA journal_mode = DELETE').fetchall()\n"
    "connection.execute('PRAGMA auto_vacuum = FULL')\nconnection.execute('VACUUM')",
    "killed with a journal": "import os\n"
    "connection.execute('PRAGMA journal_mode = DELETE').fetchall()\n"
    "connection.execute('PRAGMA cache_size = 1')\nconnection.execute('BEGIN')\n"
    "connection.execute('INSERT INTO mine VALUES (1, zeroblob(900000))')\nos.kill(os.getpid(), 9)",
}


def run_tool(path: Path, use: str) -> None:
    copy = path.with_name("copy.db")
    done = subprocess.run(
        [sys.executable, "-c", TOOL, str(path), str(copy), use],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    assert done.returncode == (-9 if "os.kill" in use else 0)


@contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store open, and goes on when it is told to."""
    source = str(Path(millstream.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        env={**os.environ, "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "store.db"
    with millstream.open(place) as ms:
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE mine (id, text)")
        for number in range(30):
            ms.log("orders").append(b"%d" % number * 100, key=f"k{number}")
        ms.log("orders").append_many([b"%d" % number for number in range(50)])
        ms.create_queue("jobs").put_many([{"n": n} for n in range(20)])
        ms.fold()
        ms.log("orders").append(b"unfolded")
    return place


def check(path: Path, records: int) -> None:
    """The store opens, reads, appends, claims, and the doctor calls it healthy; twice."""
    for _ in range(2):
        with millstream.open(path) as ms:
            orders, jobs = ms.log("orders"), ms.queue("jobs")
            assert [record.offset for record in orders.read()] == list(range(records))
            orders.append(b"more")
            records += 1
            jobs.put({"n": -1})
            (message,) = jobs.claim(1)
            jobs.ack([message])
            ms.fold()
        report = examine(path)
        assert report.healthy, report.problems


RECORDS = 81


@pytest.mark.parametrize("use", [*USES, *ALONE])
def test_a_closed_store(path: Path, use: str) -> None:
    run_tool(path, (USES | ALONE)[use])
    check(path, RECORDS)
    check_copy(path, RECORDS)


@pytest.mark.parametrize("use", [*USES, *ALONE])
def test_a_store_whose_writer_was_killed(path: Path, use: str) -> None:
    with writer(path) as process:
        process.kill()
        process.wait()
    assert Path(f"{path}-wal").stat().st_size
    run_tool(path, (USES | ALONE)[use])
    check(path, RECORDS + 1)
    check_copy(path, RECORDS + 1)


@pytest.mark.parametrize("use", USES)
def test_a_store_that_is_open_elsewhere(path: Path, use: str) -> None:
    with writer(path) as process, millstream.open(path) as ms:
        assert process.stdin is not None
        assert process.stdout is not None
        run_tool(path, USES[use])
        for round_ in range(2):
            process.stdin.write("go on\n")
            process.stdin.flush()
            assert process.stdout.readline() == "went on\n"
            ms.log("orders").append(b"here")
            assert len(list(ms.log("orders").read())) == RECORDS + 3 + 2 * round_
            assert examine(path).healthy
        process.stdin.close()
        assert process.wait() == 0
        ms.log("orders").append(b"the last one")
    check(path, RECORDS + 6)
    check_copy(path, RECORDS + 1)


def check_copy(path: Path, records: int) -> None:
    """What a tool has copied is a store of its own, as it was then."""
    copy = path.with_name("copy.db")
    if copy.exists():
        assert examine(copy).healthy
        check(copy, records)
