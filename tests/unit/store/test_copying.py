"""Copies of stores: from any engine to any other, broken off anywhere, and the rows are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.engine import row_copy
from millstream.engine.commit import Commit
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.memory.faults import Crash, Faults, Torn
from millstream.engine.open import open_engine
from millstream.engine.protocol import Engine
from millstream.engine.row_copy import CopyReport, copy_rows
from millstream.errors import CannotOpen, CorruptionError, OutcomeUnknown
from millstream.format import keys
from tests.conformance.kits import ENGINES, EVERY_ENGINE, all_rows


def filled(engine: Engine) -> None:
    """A store with rows of many types, some folded and some not."""
    store = open_store(engine)
    with store.pause_keeper():
        ms = Millstream(EmbeddedSession(store))
        ms.log("singles").append(b"x", headers={"n": 1})
        ms.log("blocks").append_many([b"%d" % n * 40 for n in range(500)])
        jobs = ms.queue("jobs", sources=["blocks"], start="earliest")
        jobs.ack(jobs.claim(7))
        ms.fold()
        ms.log("singles").append(b"unfolded")
    store.recovery.attempt()


@pytest.fixture
def source() -> Iterator[Engine]:
    engine = MemoryEngine()
    filled(engine)
    yield engine
    engine.close()


@pytest.fixture(params=EVERY_ENGINE)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    made = ENGINES[request.param].make(tmp_path)
    yield made
    made.close()


def test_a_copy_has_the_same_rows_and_is_a_store(source: Engine, target: Engine) -> None:
    report = copy_rows(source, target)
    rows = all_rows(source)
    assert all_rows(target) == rows
    assert (report.rows, report.written) == (len(rows), len(rows))
    back = MemoryEngine()
    copy_rows(target, back)
    assert all_rows(back) == rows
    ms = Millstream(EmbeddedSession(open_store(target)))
    assert ms.log("blocks").end_offset() == 500
    assert ms.log("singles").last().value == b"unfolded"
    ms.close()


def test_a_second_copy_writes_nothing(source: Engine) -> None:
    target = MemoryEngine()
    first = copy_rows(source, target)
    assert copy_rows(source, target) == CopyReport(first.rows, first.bytes, written=0)


def test_a_copy_that_was_broken_off_anywhere_goes_on(
    source: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_copy, "COMMIT_BYTES", 1_000)
    whole = MemoryEngine()
    copy_rows(source, whole)
    for commit in range(1, whole.commits + 1):
        faults = Faults()
        faults.on("sent", Crash(kept=commit % 2 == 0), nth=commit)
        broken = MemoryEngine(faults=faults)
        with pytest.raises(Crash):
            copy_rows(source, broken)
        again = broken.reopen()
        if again.last_seq() == 0 and all_rows(again):
            with pytest.raises(CorruptionError):
                open_store(again)
        copy_rows(source, again)
        assert all_rows(again) == all_rows(whole)


def test_a_copy_whose_answer_is_lost_says_how_it_goes_on(source: Engine) -> None:
    faults = Faults()
    faults.on("sent", Torn(kept=False))
    target = MemoryEngine(faults=faults)
    with pytest.raises(OutcomeUnknown, match=r"broke off.*goes on with what is there"):
        copy_rows(source, target)


@pytest.mark.parametrize("kind", ["sqlite", "slatedb"])
def test_a_copy_that_was_broken_off_cannot_be_read_as_a_store(
    source: Engine, tmp_path: Path, kind: str
) -> None:
    place = str(tmp_path / "a.db") if kind == "sqlite" else f"file://{tmp_path}/a"
    target = open_engine(place)
    with pytest.raises(CannotOpen, match="is not made yet"):
        millstream.open(place, mode="r")
    with source.read() as snapshot, target.write() as writer:
        rows = snapshot.scan(b"\x00", b"\xff", limit=10_000)
        kept = [row for row in rows if row[0][1] != keys.DELTA]
        writer.commit(Commit(kept))
    target.close()
    for mode in ("r", "rw"):
        with pytest.raises(CorruptionError, match="delta is missing"):
            millstream.open(place, mode=mode)


def test_another_store_is_not_written_over(source: Engine) -> None:
    target = MemoryEngine()
    filled(target)
    before = all_rows(target)
    with pytest.raises(CannotOpen, match="already"):
        copy_rows(source, target)
    assert all_rows(target) == before


def test_where_there_is_no_store_nothing_is_copied() -> None:
    with pytest.raises(CannotOpen, match="there is no store"):
        copy_rows(MemoryEngine(), MemoryEngine())
