"""Promise: a store that is opened to be read only is read beside its writers, and never changed."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import CannotOpen
from millstream.log.commands import ReadBlocks


def read_only(path: Path) -> Millstream:
    return Millstream(EmbeddedSession(open_store(SqliteEngine(path, read_only=True))))


def test_a_reader_sees_what_writers_commit_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as writer:
        writer.log("a").append(b"1")
        with read_only(path) as reader:
            assert [record.value for record in reader.log("a").read()] == [b"1"]
            writer.log("a").append_many([b"2", b"3"])
            writer.fold()
            assert [record.value for record in reader.log("a").read()] == [b"1", b"2", b"3"]
            with pytest.raises(CannotOpen, match="opened to be read only"):
                reader.log("a").append(b"4")
        assert writer.log("a").append(b"4") == 3


def test_the_last_to_close_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    writer = millstream.open(path)
    for i in range(600):  # a tail that closing would fold
        writer.log("a").append(b"%d" % i)
    reader = read_only(path)
    assert reader.log("a").end_offset() == 600
    writer.close()
    before = path.read_bytes()
    reader.close()
    assert path.read_bytes() == before
    with read_only(path) as again:
        assert len(list(again.log("a").read())) == 600
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [None, b""])
def test_no_store_is_made(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "s.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CannotOpen, match="there is no store"):
        read_only(path)
    assert path.exists() == (content is not None)


def test_metadata_is_read_without_values(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "s.db") as ms:
        log = ms.log("a")
        log.append_many([b"x" * 100] * 5, keys=[b"k"] * 5, headers=[{"n": i} for i in range(5)])
        for i in range(3):
            log.append(b"y", key="s", headers={"n": 5 + i}, timestamp=i)
        for _ in range(2):
            blocks = ms.session.execute(ReadBlocks("a", 2, 7, 2**20, values=False))
            assert [offset for block in blocks for offset in block.offsets] == [2, 3, 4, 5, 6]
            assert {block.payload for block in blocks} == {b""}
            assert [one["n"] for block in blocks for one in block.headers()] == [2, 3, 4, 5, 6]
            assert [key for block in blocks for key in list(block.keys())] == [b"k"] * 3 + [
                b"s"
            ] * 2
            whole = ms.session.execute(ReadBlocks("a", 2, 7, 2**20))
            for name in ("timestamps", "appended"):
                assert [x for one in blocks for x in getattr(one, name)()] == [
                    x for one in whole for x in getattr(one, name)()
                ]
            ms.fold()  # singles are joined
