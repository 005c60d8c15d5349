"""A repeated or interrupted import stores each record once."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.errors import InvalidInput
from millstream.exchange import importing
from millstream.exchange.formats import Format, reader_of
from millstream.exchange.importing import ImportSummary, checked_file, import_file
from millstream.limits import Limits


def run(ms: Millstream, path: Path, heard: importing.Tell | None = None) -> ImportSummary:
    summary = ImportSummary()
    with path.open("rb") as stream:
        read = reader_of(Format.JSONL)
        file = checked_file(stream, read, needs_log=True, skip_bad=False)
        import_file(ms, file, summary, heard=heard)
    return summary


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of several chunks, in which two logs alternate."""
    path = tmp_path / "orders.jsonl"
    padding = "x" * 100
    lines = (f'{{"log":"log-{n % 2}","value":"{n} {padding}"}}\n' for n in range(30_000))
    path.write_text("".join(lines))
    return path


def numbers(ms: Millstream, log: str) -> list[int]:
    return [int(record.text.split()[0]) for record in ms.log(log)]


def test_a_repeated_import_stores_nothing(path: Path) -> None:
    with millstream.open(":memory:") as ms:
        assert run(ms, path).stored == 30_000
        again = run(ms, path)
        assert (again.stored, again.repeated) == (0, 30_000)
        assert numbers(ms, "log-1") == list(range(1, 30_000, 2))


def test_an_interrupted_import_continues(path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(stage: str, done: int, total: int) -> None:
        if done > 2_000_000:
            raise Interrupted

    with millstream.open(":memory:") as ms:
        with pytest.raises(Interrupted):
            run(ms, path, interrupt)
        before = len(ms.log("log-0")) + len(ms.log("log-1"))
        assert 0 < before < 30_000
        summary = run(ms, path)
        assert (summary.stored, summary.repeated) == (30_000 - before, before)
        assert numbers(ms, "log-0") == list(range(0, 30_000, 2))
        assert numbers(ms, "log-1") == list(range(1, 30_000, 2))


def test_batches_that_the_store_remembers_no_longer_one_by_one_are_passed_over(path: Path) -> None:
    with millstream.open(":memory:", limits=Limits(producer_sequences_kept=1)) as ms:
        assert run(ms, path).stored == 30_000
        assert run(ms, path).repeated == 30_000
        assert numbers(ms, "log-0") == list(range(0, 30_000, 2))


def test_another_file_is_another_import(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(path.read_text() + '{"log":"log-0","value":"30000"}\n')
    with millstream.open(":memory:") as ms:
        run(ms, path)
        assert run(ms, other).stored == 30_001


def test_a_bad_line_anywhere_stores_nothing(path: Path) -> None:
    path.write_text(path.read_text() + '\n{"log":"log-0"}\nnot JSON\n')
    with millstream.open(":memory:") as ms:
        with pytest.raises(
            InvalidInput, match=r"line 30002: the field `value` is missing.* line 3"
        ):
            run(ms, path)
        assert len(ms.log("log-0")) == 0
