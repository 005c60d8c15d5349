"""The write-ahead log is copied into the file by whoever is there, whoever wrote it."""

from __future__ import annotations

from pathlib import Path

from millstream.format import keys
from millstream.limits import KiB, Limits
from millstream.store.sqlite import SqliteEngine

LIMITS = Limits(wal_bytes_checkpoint=64 * KiB)


def write(engine: SqliteEngine, number: int, size: int) -> None:
    with engine.write() as writer:
        writer.put([(keys.payload_block(number), b"x" * size)])
        writer.commit()


def test_what_a_short_lived_writer_leaves_is_copied_by_one_that_stays(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    stays = SqliteEngine(path, limits=LIMITS)
    write(stays, 1, 1 * KiB)
    stays.notice_others()
    assert not stays.wants_tending()

    goes = SqliteEngine(path, limits=LIMITS)
    write(goes, 2, 1024 * KiB)
    goes.close()
    before = path.stat().st_size
    assert not stays.wants_tending()
    stays.notice_others()
    assert stays.wants_tending()
    stays.tend()
    assert path.stat().st_size >= before + 1024 * KiB
    assert not stays.wants_tending()

    stays.notice_others()
    assert not stays.wants_tending()  # the log is as large as before, but nothing is new
    stays.close()


def test_little_that_others_wrote_is_left_to_them(tmp_path: Path) -> None:
    stays = SqliteEngine(tmp_path / "store.db", limits=LIMITS)
    other = SqliteEngine(tmp_path / "store.db", limits=LIMITS)
    write(other, 1, 1 * KiB)
    stays.notice_others()
    assert not stays.wants_tending()
    other.close()
    stays.close()
