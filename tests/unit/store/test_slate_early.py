"""Large commits to a bucket: their payload blocks are written before them, and never seen alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.doctor import examine
from millstream.engine.commit import Commit, Spool, SpooledRows
from millstream.engine.slate.engine import SlateEngine
from millstream.engine.slate.rows import EARLY_BYTES, MARK
from millstream.errors import WriteFailed
from millstream.format import keys
from millstream.limits import MiB

pytestmark = pytest.mark.requires("s3")

BLOCKS = keys.range_of(keys.prefix(keys.PAYLOAD_BLOCK))
COUNT = 2 * EARLY_BYTES // MiB + 3
HEAD = keys.head(1)


def spooled(first: int, *, count: int = COUNT, broken_at: int = -1) -> Commit:
    """A commit of blocks of a mebibyte, and one row that refers to them."""
    spool = Spool(None)
    values: dict[bytes, Any] = {HEAD: b"head"}
    for number in range(count):
        value: Any = spool.add(number.to_bytes(4, "big") * (MiB // 4))
        values[keys.payload_block(first + number)] = Broken() if number == broken_at else value
    return Commit(SpooledRows(values))


class Broken:
    """A value whose temporary file cannot be read any more."""

    def __len__(self) -> int:
        return MiB

    def read(self) -> bytes:
        raise WriteFailed("a temporary file could not be read")


def opened(tmp_path: Path) -> SlateEngine:
    return SlateEngine(f"file://{tmp_path}/bucket")


def commit(engine: SlateEngine, wanted: Commit) -> None:
    with engine.write() as writer:
        writer.commit(wanted)


def blocks_of(engine: SlateEngine) -> list[bytes]:
    with engine.read() as snapshot:
        return [key for key, _ in snapshot.scan(*BLOCKS, limit=1_000)]


def test_a_large_commit_is_written_in_steps_and_stored_whole(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    commit(engine, spooled(10))
    assert len(list((tmp_path / "bucket" / "wal").iterdir())) >= 4  # three steps, and the commit
    engine.close()
    engine = opened(tmp_path)
    with engine.read() as snapshot:
        assert snapshot.get(HEAD) == b"head"
        assert snapshot.get(MARK) is None
        for number in range(COUNT):
            found = snapshot.get(keys.payload_block(10 + number))
            assert found == number.to_bytes(4, "big") * (MiB // 4)
    engine.close()


@pytest.mark.parametrize("reopens", [True, False])
def test_of_a_large_commit_that_breaks_off_nothing_is_left(tmp_path: Path, reopens: bool) -> None:
    engine = opened(tmp_path)
    commit(engine, Commit([(keys.payload_block(5), b"before")]))
    with pytest.raises(WriteFailed):
        commit(engine, spooled(10, broken_at=COUNT - 1))
    if reopens:
        engine.close()
        engine = opened(tmp_path)
    assert blocks_of(engine) == [keys.payload_block(5)]
    with engine.read() as snapshot:
        assert snapshot.get(HEAD) is None
    commit(engine, spooled(10))
    assert len(blocks_of(engine)) == COUNT + 1
    engine.close()


def test_blocks_that_replace_others_are_part_of_the_commit(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    commit(engine, Commit([(keys.payload_block(11), b"before")]))
    with pytest.raises(WriteFailed):
        commit(engine, spooled(10, count=3, broken_at=2))
    with engine.read() as snapshot:
        assert snapshot.get(keys.payload_block(11)) == b"before"
    commit(engine, spooled(10, count=3))
    assert len(blocks_of(engine)) == 3
    engine.close()


def test_a_store_whose_writer_died_in_a_large_commit_is_sound(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/bucket"
    with millstream.open(address) as ms:
        ms.log("orders").append_many([b"a" * 3_000, b"b" * 3_000])
    engine = opened(tmp_path)
    with pytest.raises(WriteFailed):
        commit(engine, spooled(10**6, broken_at=COUNT - 1))
    assert examine(address).problems == []  # as a reader, while the blocks are there
    reader = SlateEngine(address, read_only=True)
    assert len(blocks_of(reader)) == 1
    reader.close()
    with millstream.open(address) as ms:
        assert [record.value for record in ms.log("orders").read()] == [b"a" * 3_000, b"b" * 3_000]
    assert examine(address).problems == []
