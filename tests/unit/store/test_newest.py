"""The newest delta: remembered by the writer, and looked for again when anybody may have written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Millstream
from millstream.errors import WriteFailed
from millstream.testing import Probe
from millstream.threads.log import Log

pytestmark = pytest.mark.embedded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def ms(path: Path) -> Iterator[Millstream]:
    with millstream.open(path) as opened:
        yield opened


def writer_of(ms: Millstream) -> Any:
    return Probe(ms).store.engine._writer


def looks(ms: Millstream, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions for the newest delta that reach SQLite from now on."""
    writer, asked = writer_of(ms), []
    execute = writer._execute

    def spy(statement: str, *bindings: Any) -> Any:
        if "max(id)" in statement:
            asked.append(statement)
        return execute(statement, *bindings)

    monkeypatch.setattr(writer, "_execute", spy)
    return asked


def test_who_writes_alone_does_not_look_for_it(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ms.log("a")
    log.append(b"0")
    asked = looks(ms, monkeypatch)
    for n in range(20):
        assert log.append(b"x") == n + 1
    ms.fold()
    assert log.append(b"y") == 21
    assert asked == []


def test_what_others_have_written_is_seen(
    ms: Millstream, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with millstream.open(path) as other:
        ours, theirs = ms.log("a"), other.log("a")
        asked = looks(ms, monkeypatch)
        for n in range(0, 20, 2):
            assert theirs.append(b"t") == n
            assert ours.append(b"o") == n + 1
        other.fold()
        assert ours.append(b"o") == 20
    assert len(asked) >= 10


def test_a_delta_that_was_not_written_is_not_remembered(ms: Millstream) -> None:
    """SQLite takes a transaction back by itself when the file cannot grow."""
    log = ms.log("a")
    log.append(b"0")
    connection = writer_of(ms).connection
    connection.pragma("max_page_count", connection.pragma("page_count"))
    stored = append_until_full(log)
    connection.pragma("max_page_count", 2**31)
    assert log.append(b"y") == stored
    assert len(list(log.read(0))) == stored + 1


def append_until_full(log: Log) -> int:
    """Append small records, which ride in their deltas; how many there are at last."""
    for _ in range(10_000):
        try:
            log.append(b"x" * 1_500)
        except WriteFailed:
            return log.end_offset()
    raise AssertionError("the file never became full")
