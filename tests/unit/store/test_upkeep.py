"""Upkeep: SQLite's write-ahead log is copied by the process that is there, whichever wrote it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from millstream import SqliteOptions
from millstream.engine.commit import Commit
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.format import keys
from millstream.limits import KiB

OPTIONS = SqliteOptions(wal_bytes_checkpoint=64 * KiB)


def write(engine: SqliteEngine, number: int, size: int) -> None:
    with engine.write() as writer:
        writer.commit(Commit([(keys.payload_block(number), b"x" * size)]))


def upkeep(engine: SqliteEngine) -> int:
    """Do what is due; by how many bytes the file has grown."""
    before = engine.path.stat().st_size
    engine.upkeep(nullcontext())
    return engine.path.stat().st_size - before


def test_what_a_short_lived_writer_leaves_is_copied_by_one_that_stays(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    stays = SqliteEngine(path, options=OPTIONS)
    write(stays, 1, 1 * KiB)
    assert upkeep(stays) == 0

    goes = SqliteEngine(path, options=OPTIONS)
    write(goes, 2, 1024 * KiB)
    goes.close()
    assert upkeep(stays) >= 1024 * KiB

    write(stays, 3, 1 * KiB)
    assert upkeep(stays) == 0  # the log's file is as large as before, but little in it is new
    stays.close()


def test_little_that_others_wrote_is_left_to_them(tmp_path: Path) -> None:
    stays = SqliteEngine(tmp_path / "store.db", options=OPTIONS)
    other = SqliteEngine(tmp_path / "store.db", options=OPTIONS)
    write(other, 1, 1 * KiB)
    assert upkeep(stays) == 0
    other.close()
    stays.close()


def test_the_engine_says_when_there_is_something_to_do(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "store.db", options=OPTIONS)
    told: list[int] = []
    engine.on_upkeep_due = lambda: told.append(1)
    write(engine, 1, 1 * KiB)
    assert not told
    write(engine, 2, 128 * KiB)
    assert told
    assert upkeep(engine) >= 128 * KiB
    told.clear()
    write(engine, 3, 1 * KiB)
    assert not told
    engine.close()
