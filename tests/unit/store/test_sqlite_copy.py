"""A copy of a whole file, larger than what SQLite keeps in memory."""

from __future__ import annotations

import os
from pathlib import Path

import millstream
from millstream.engine.open import open_engine
from millstream.engine.sqlite.engine import SqliteEngine


def test_a_copy_of_a_large_file_can_be_opened_and_is_whole(tmp_path: Path) -> None:
    values = [os.urandom(1_000) for _ in range(8_000)]
    with millstream.open(tmp_path / "a.db") as ms:
        ms.log("a").append_many(values)
        ms.fold()
        ms.log("a").append(b"in the write-ahead log")
        engine = open_engine(tmp_path / "a.db")
        try:
            assert isinstance(engine, SqliteEngine)
            engine.copy_to(tmp_path / "b.db")
        finally:
            engine.close()
    with millstream.open(tmp_path / "b.db", mode="r") as copy:
        found = [record.value for record in copy.log("a").read()]
    assert found == [*values, b"in the write-ahead log"]
