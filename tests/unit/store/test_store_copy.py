"""A copy of a store's file is the whole store as of one commit; a half copy never has its name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import apsw
import pytest

import millstream
from millstream import doctor
from millstream.engine import copy as store_copy
from millstream.engine.copy import PARTIAL, copy_store
from millstream.engine.open import open_engine
from millstream.errors import CannotOpen, CorruptionError, InvalidInput
from millstream.server.auth.signing_key import KEY_FILE
from millstream.server.auth.tokens import create_token
from tests.conformance.kits import all_rows

SCHEMA = (
    'CREATE TABLE "the orders" (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, blob BLOB, '
    "twice TEXT GENERATED ALWAYS AS (name || name) VIRTUAL)",
    'CREATE INDEX by_name ON "the orders" (name)',
    "CREATE TABLE seen (name TEXT PRIMARY KEY) WITHOUT ROWID",
    'CREATE TRIGGER note AFTER INSERT ON "the orders" BEGIN '
    "INSERT OR IGNORE INTO seen VALUES (new.name); END",
    'CREATE VIEW names AS SELECT name FROM "the orders"',
)
TABLES = ["names", "seen", "the orders"]


def fill(path: Path) -> None:
    """Everything that a store can hold, with claims in flight."""
    with millstream.open(path) as ms:
        ms.log("orders").append_many([b"%d" % n * 50 for n in range(300)])
        jobs = ms.queue("jobs", sources=["orders"], start="earliest")
        jobs.ack(jobs.claim(3))
        jobs.nack(jobs.claim(2), reason="not now")
        jobs.claim(4, lease=3600)
        reader = ms.log("orders").cursor("reader")
        reader.ack(reader.take(7))
        ms.room("hall").send("chat", "hello", key="k")
        create_token(ms, "someone", ["log:read:*"])
        with ms.transaction() as tx:
            for statement in SCHEMA:
                tx.sql(statement)
            for n in range(200):
                tx.sql(
                    'INSERT INTO "the orders" (name, blob) VALUES (?, ?)', (f"ü{n}", b"\x00" * n)
                )
        ms.fold()
        ms.log("orders").append(b"unfolded")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    fill(tmp_path / "a.db")
    return tmp_path / "a.db"


def rows_of(path: Path) -> dict[bytes, bytes]:
    engine = open_engine(path, mode="r")
    try:
        return dict(all_rows(engine))
    finally:
        engine.close()


def names_in(folder: Path) -> set[str]:
    """The names of stores and backups; a token makes the key of signatures beside its store."""
    beside = ("-wal", "-shm", KEY_FILE)
    return {one.name for one in folder.iterdir() if not one.name.endswith(beside)}


def test_a_copy_has_all_of_the_store_and_of_the_applications_tables(
    source: Path, tmp_path: Path
) -> None:
    os.chmod(source, 0o660)
    report = copy_store(str(source), str(tmp_path / "b.db"))
    assert report.tables == TABLES
    assert report.left_behind == []
    assert report.rows == report.written == len(rows_of(source))
    assert rows_of(tmp_path / "b.db") == rows_of(source)
    assert (tmp_path / "b.db").stat().st_mode & 0o777 == 0o660
    assert names_in(tmp_path) == {"a.db", "b.db"}
    assert doctor.examine(tmp_path / "b.db").healthy
    with millstream.open(tmp_path / "b.db") as ms:
        counts = ms.queue("jobs").info()
        assert (counts.done, counts.in_flight) == (3, 4)
        assert ms.log("orders").cursor("reader").take(1)[0].offset == 7
        assert [one.name for one in ms.rooms()] == ["hall"]
        assert ms.log("orders").last().value == b"unfolded"
        with ms.transaction() as tx:  # index, trigger and view are there, and at work
            tx.sql('INSERT INTO "the orders" (name) VALUES (?)', ("new",))
        assert ms.sql("SELECT count(*) FROM names").rows == [(201,)]
        assert ms.sql("SELECT name FROM seen WHERE name = 'new'").rows == [("new",)]
        assert ms.sql('SELECT max(id) FROM "the orders"').rows == [(201,)]


def test_a_copy_beside_a_writer_is_the_store_as_of_one_commit(source: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    wrote = threading.Event()

    def write() -> None:
        with millstream.open(source) as ms:
            for number in count():
                if stop.is_set():
                    return
                with ms.transaction() as tx:
                    tx.sql("INSERT INTO seen VALUES (?)", (f"w{number}",))
                    tx.append("written", b"%d" % number * 200)
                    tx.put("jobs", b"%d" % number)
                if number == 20:
                    wrote.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert wrote.wait(60)
        for number in range(3):
            copy_store(str(source), str(tmp_path / f"copy{number}.db"))
    finally:
        stop.set()
        writer.join()
    ends = []
    for number in range(3):
        path = tmp_path / f"copy{number}.db"
        assert doctor.examine(path).healthy
        with millstream.open(path) as ms:
            ends.append(ms.log("written").end_offset())
            rows = ms.sql("SELECT count(*) FROM seen WHERE name LIKE 'w%'").rows
            assert rows == [(ends[-1],)]
            ms.log("written").append(b"and on")
            assert ms.queue("jobs").claim(1)
    assert ends == sorted(ends)
    assert ends[0] >= 20


def test_what_is_there_is_replaced_only_on_request(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.db"
    with millstream.open(target) as ms:
        ms.log("other").append(b"x")
    before = target.read_bytes()
    with pytest.raises(CannotOpen, match="--replace"):
        copy_store(str(source), str(target))
    assert target.read_bytes() == before
    copy_store(str(source), str(target), replace=True)
    assert rows_of(target) == rows_of(source)
    copy_store(str(source), str(target), replace=True)
    assert rows_of(target) == rows_of(source)


def test_the_log_of_a_store_that_is_replaced_does_not_spoil_the_copy(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "b.db"
    code = f"""
        import millstream, os
        ms = millstream.open({str(target)!r})
        ms.log("other").append_many([b"x" * 3000] * 50)
        os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert Path(f"{target}-wal").stat().st_size
    copy_store(str(source), str(target), replace=True)
    assert rows_of(target) == rows_of(source)
    assert doctor.examine(target).healthy


def test_a_store_in_use_is_not_replaced(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_copy, "IN_USE_S", 0.0)
    target = tmp_path / "b.db"
    with millstream.open(target) as ms:
        ms.log("other").append(b"x")
        with pytest.raises(CannotOpen, match="in use"):
            copy_store(str(source), str(target), replace=True)
    code = f"""
        import millstream, sys
        ms = millstream.open({str(target)!r})
        print("open", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"open\n"
        with pytest.raises(CannotOpen, match="in use"):
            copy_store(str(source), str(target), replace=True)
        user.communicate()
    with millstream.open(target) as ms:
        assert ms.log("other").end_offset() == 1
    assert names_in(tmp_path) == {"a.db", "b.db"}


def test_what_is_no_store_is_never_replaced(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("mine" * 100)
    with pytest.raises(CannotOpen, match="not a Millstream store"):
        copy_store(str(source), str(tmp_path / "text"), replace=True)
    apsw.Connection(str(tmp_path / "other.sqlite")).execute("CREATE TABLE mine (a)")
    with pytest.raises(CannotOpen, match="not a Millstream store"):
        copy_store(str(source), str(tmp_path / "other.sqlite"), replace=True)
    with pytest.raises(InvalidInput, match="the store itself"):
        copy_store(str(source), str(source), replace=True)
    with pytest.raises(CannotOpen, match="is a directory"):
        copy_store(str(source), str(tmp_path))
    with pytest.raises(CannotOpen, match="does not exist"):
        copy_store(str(source), str(tmp_path / "none" / "b.db"))
    with pytest.raises(CannotOpen, match="no store"):
        copy_store(str(tmp_path / "none.db"), str(tmp_path / "b.db"))
    (tmp_path / "b.db-wal").write_bytes(b"left by another")
    with pytest.raises(CannotOpen, match="without its store"):
        copy_store(str(source), str(tmp_path / "b.db"))


def test_an_empty_file_is_as_good_as_none_and_a_link_leads_to_its_file(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.db").touch()
    copy_store(str(source), str(tmp_path / "empty.db"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "elsewhere" / "b.db")
    copy_store(str(source), str(tmp_path / "link.db"))
    assert (tmp_path / "link.db").is_symlink()
    assert rows_of(tmp_path / "elsewhere" / "b.db") == rows_of(source)


COPIER = """
import sys
from millstream.engine.copy import copy_store

def tell(stage, done, total):
    print(stage, flush=True)
    sys.stdin.readline()

copy_store(sys.argv[1], sys.argv[2], heard=tell)
"""


@pytest.fixture(params=["copying", "checking", "comparing seen"])
def killed_at(request: pytest.FixtureRequest) -> str:
    stage: str = request.param
    return stage


def test_a_copy_that_is_killed_leaves_no_store_and_is_begun_again(
    source: Path, tmp_path: Path, killed_at: str
) -> None:
    target = tmp_path / "b.db"
    with subprocess.Popen(
        [sys.executable, "-c", COPIER, str(source), str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as copier:
        assert copier.stdout is not None
        assert copier.stdin is not None
        while copier.stdout.readline().strip() != killed_at:
            copier.stdin.write("\n")
            copier.stdin.flush()
        assert not target.exists()
        with pytest.raises(CannotOpen, match="another copy to"):
            copy_store(str(source), str(target))
        copier.send_signal(signal.SIGKILL)
    assert not target.exists()
    assert (tmp_path / f"b.db{PARTIAL}").exists()
    copy_store(str(source), str(target))
    assert rows_of(target) == rows_of(source)
    assert names_in(tmp_path) == {"a.db", "b.db"}


def test_a_copy_that_differs_is_refused_and_removed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store_copy.table_rows
    calls: Iterator[int] = iter(range(1_000))

    def rows(connection: apsw.Connection, table: str) -> Iterator[tuple[object, ...]]:
        found = list(real(connection, table))
        return iter(found[:-1] if next(calls) % 2 else found)

    monkeypatch.setattr(store_copy, "table_rows", rows)
    with pytest.raises(CorruptionError, match="differs"):
        copy_store(str(source), str(tmp_path / "b.db"))
    assert names_in(tmp_path) == {"a.db"}


def test_a_damaged_store_is_not_copied_as_if_it_were_whole(source: Path, tmp_path: Path) -> None:
    connection = apsw.Connection(str(source))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = bytearray(source.read_bytes())
    place = data.index(b"299" * 20)
    data[place] ^= 1
    source.write_bytes(data)
    with pytest.raises(CorruptionError):
        copy_store(str(source), str(tmp_path / "b.db"))
    assert names_in(tmp_path) == {"a.db"}


@pytest.mark.requires("s3")
def test_a_bucket_gets_no_tables_and_the_caller_must_say_so(source: Path, tmp_path: Path) -> None:
    bucket = f"file://{tmp_path}/bucket"
    with pytest.raises(InvalidInput, match="names, seen, the orders") as refused:
        copy_store(str(source), bucket)
    assert "--without-tables" in refused.value.message
    assert not (tmp_path / "bucket").exists()
    report = copy_store(str(source), bucket, without_tables=True)
    assert (report.tables, report.left_behind) == ([], TABLES)
    with pytest.raises(InvalidInput, match="only a file"):
        copy_store(str(source), bucket, replace=True)
    back = copy_store(bucket, str(tmp_path / "b.db"))
    assert (back.tables, back.left_behind) == ([], [])
    assert rows_of(tmp_path / "b.db") == rows_of(source)
