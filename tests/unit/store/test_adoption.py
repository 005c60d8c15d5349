"""An application's SQLite database becomes a store, and stays the application's database."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import aio
from millstream.doctor import examine
from millstream.engine.copy import copy_store
from millstream.errors import CannotOpen, InvalidInput

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE orders (id TEXT PRIMARY KEY, customer REFERENCES customers, paid) WITHOUT ROWID;
CREATE INDEX by_customer ON orders (customer);
CREATE VIEW unpaid AS SELECT * FROM orders WHERE NOT paid;
CREATE TRIGGER trimmed AFTER INSERT ON customers
    BEGIN UPDATE customers SET name = trim(name) WHERE id = new.id; END;
INSERT INTO customers VALUES (1, ' Ada '), (2, 'Zoë 🦊');
INSERT INTO orders VALUES ('a', 1, 0), ('b', 2, 1);
PRAGMA user_version = 42;
PRAGMA application_id = 77;
"""


def make(path: Path, *pragmas: str, mode: str = "wal") -> Path:
    """Make the database of an application."""
    with closing(sqlite3.connect(path)) as connection:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.executescript(SCHEMA)
        connection.commit()
    return path


def contents(path: Path) -> tuple[Any, ...]:
    """Return everything in a database that is the application's."""
    with closing(sqlite3.connect(path)) as connection:
        lines = [line for line in connection.iterdump() if "millstream_" not in line]
        pragmas = ("user_version", "application_id", "encoding", "page_size", "auto_vacuum")
        return lines, *(connection.execute(f"PRAGMA {name}").fetchone() for name in pragmas)


def use(path: Path, **options: Any) -> None:
    """Use a store in each way, with the application's rows in the same commit."""
    with millstream.open(path, **options) as ms:
        ms.create_queue("jobs")
        with ms.transaction() as tx:
            tx.sql("INSERT INTO customers (name) VALUES (?)", (" new ",))
            tx.put("jobs", {"welcome": "new"})
        (message,) = ms.queue("jobs").claim(1)
        ms.queue("jobs").ack([message])
        ms.log("events").append(b"1")
        ms.fold()
    with millstream.open(path) as ms:
        assert [record.value for record in ms.log("events").read()] == [b"1"]
        assert ms.sql("SELECT name FROM customers WHERE id = 3").rows == [("new",)]
    report = examine(path)
    assert report.healthy, report.problems


def test_a_database_in_wal_mode_becomes_a_store(tmp_path: Path) -> None:
    path = make(tmp_path / "app.db")
    before = contents(path)
    with millstream.open(path):
        pass
    assert contents(path) == before
    use(path)


@pytest.mark.parametrize(
    "pragma", ["encoding = 'UTF-16'", "page_size = 512", "page_size = 65536", "auto_vacuum = FULL"]
)
def test_every_kind_of_database_becomes_a_store(tmp_path: Path, pragma: str) -> None:
    path = make(tmp_path / "app.db", pragma)
    before = contents(path)
    with millstream.open(path):
        pass
    assert contents(path) == before
    use(path)


def test_a_large_schema_becomes_a_store(tmp_path: Path) -> None:
    path = make(tmp_path / "app.db")
    with closing(sqlite3.connect(path)) as connection:
        for number in range(120):
            connection.execute(f"CREATE TABLE a_table_with_a_long_name_{number} (one, two, three)")
    use(path)


@pytest.mark.parametrize(
    ("statement", "unchecked"),
    [
        ("ALTER TABLE orders ADD COLUMN code CHECK (code REGEXP '^[a-z]+$')", False),
        ("CREATE INDEX by_code ON orders (twice(id))", True),
        ("CREATE INDEX paid_code ON orders (paid) WHERE twice(id) > 0", True),
        ("CREATE INDEX by_sound ON orders (id COLLATE sound)", True),
    ],
)
def test_a_schema_may_need_functions_and_collations_of_the_application(
    tmp_path: Path, statement: str, unchecked: bool
) -> None:
    path = make(tmp_path / "app.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.create_function("regexp", 2, lambda _pattern, _text: True, deterministic=True)
        connection.create_function("twice", 1, lambda text: 2 * text, deterministic=True)
        connection.create_collation("sound", lambda one, other: (one > other) - (one < other))
        connection.execute("CREATE TABLE former AS SELECT zeroblob(100000)")
        connection.execute(statement)
        connection.commit()
        use(path)
        connection.execute("DROP TABLE former")
        connection.execute("VACUUM")  # moves trees of the store
    with millstream.open(path) as ms:
        assert [record.value for record in ms.log("events").read()] == [b"1"]
        ms.log("events").append(b"2")
    report = examine(path)
    assert report.healthy, report.problems
    assert ("orders" in report.sqlite) == unchecked
    copy_store(str(path), str(tmp_path / "copy.db"))


def test_unwritten_pages_of_the_log_are_kept(tmp_path: Path) -> None:
    path = make(tmp_path / "app.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO customers VALUES (9, 'in the log')")
        connection.commit()
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import millstream, sys; millstream.open(sys.argv[1]).close()",
                path,
            ],
            check=True,
            timeout=60,
        )
        assert connection.execute("SELECT count(*) FROM customers").fetchone() == (3,)
    assert examine(path).healthy


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist"])
def test_another_journal_mode_needs_permission(tmp_path: Path, mode: str) -> None:
    path = make(tmp_path / "app.db", mode=mode)
    before = path.read_bytes()
    with pytest.raises(CannotOpen, match=r"'delete'.*adopt=True.*millstream adopt .*nothing was"):
        millstream.open(path)
    assert path.read_bytes() == before
    use(path, adopt=True)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_refused_database_is_adopted_after_its_last_connection(tmp_path: Path) -> None:
    path = make(tmp_path / "app.db", mode="delete")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT name FROM customers").fetchall()
        for permission, problem in ((None, "adopt=True"), (True, "is in use")):
            with pytest.raises(CannotOpen, match=problem):
                millstream.open(path, adopt=permission)
    use(path, adopt=True)


def test_coroutines_adopt(tmp_path: Path) -> None:
    path = make(tmp_path / "app.db", mode="delete")

    async def adopt() -> None:
        with pytest.raises(CannotOpen, match="adopt=True"):
            await aio.open(path)
        async with await aio.open(path, adopt=True) as ms:
            await ms.log("events").append(b"1")
        with pytest.raises(InvalidInput, match="adopt= is for a file"):
            await aio.open("http://127.0.0.1:1", adopt=True)

    asyncio.run(adopt())


def test_the_mode_of_a_database_in_use_cannot_be_changed(tmp_path: Path) -> None:
    path = make(tmp_path / "app.db", mode="delete")
    reader = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN'); "
    reader += "c.execute('SELECT * FROM orders').fetchall(); print('ready', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", reader, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    options = millstream.SqliteOptions(busy_timeout_ms=50)
    with pytest.raises(CannotOpen, match=r"in use.*close all connections.*nothing was changed"):
        millstream.open(path, adopt=True, options=options)
    process.communicate(b"\n")
    use(path, adopt=True)


@pytest.mark.parametrize("options", [{"mode": "r"}, {"create": False}])
@pytest.mark.parametrize("tables", [0, 120])
def test_a_reader_changes_nothing(tmp_path: Path, options: Any, tables: int) -> None:
    path = make(tmp_path / "app.db")
    with closing(sqlite3.connect(path)) as connection:
        for number in range(tables):
            connection.execute(f"CREATE TABLE a_table_with_a_long_name_{number} (one, two, three)")
    before = contents(path)
    with pytest.raises(CannotOpen, match=r"not a Millstream store; `millstream adopt "):
        millstream.open(path, **options)
    assert contents(path) == before
    with closing(sqlite3.connect(path)) as connection:
        assert not connection.execute(
            "SELECT * FROM sqlite_schema WHERE name LIKE 'millstream%'"
        ).fetchall()


def test_page_checksums_are_for_a_new_file(tmp_path: Path) -> None:
    path = make(tmp_path / "app.db")
    with pytest.raises(InvalidInput, match="page_checksums=True is for a new file"):
        millstream.open(path, options=millstream.SqliteOptions(page_checksums=True))


@pytest.mark.parametrize(
    "data", [b"name,amount\nada,3\n", b"SQLite format 4\0" + bytes(4096), b"x"]
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "app.db"
    path.write_bytes(data)
    with pytest.raises(CannotOpen, match="no SQLite file"):
        millstream.open(path, adopt=True)
    assert path.read_bytes() == data


def test_an_empty_database_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE gone (id)")
        connection.execute("DROP TABLE gone")
    with millstream.open(path) as ms:
        ms.log("events").append(b"1")
    assert examine(path).healthy


def test_several_processes_adopt_at_once(tmp_path: Path) -> None:
    path = make(tmp_path / "app.db", mode="delete")
    program = (
        "import millstream, sys\n"
        "ms = millstream.open(sys.argv[1], adopt=True)\n"
        "ms.log('events').append(b'1')\n"
        "ms.close()"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    with millstream.open(path) as ms:
        assert len(ms.log("events")) == 4
        assert ms.sql("SELECT count(*) FROM customers").rows == [(2,)]
    assert examine(path).healthy
