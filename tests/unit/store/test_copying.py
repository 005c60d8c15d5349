"""Copies of stores: from any engine to any other, broken off anywhere, and the rows are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import Millstream
from millstream.embedded import EmbeddedSession, open_store
from millstream.errors import CannotOpen, CorruptionError
from millstream.store import copying
from millstream.store.copying import CopyReport, copy_rows
from millstream.store.engine import Engine
from millstream.store.faults import Crash, Faults
from millstream.store.memory import MemoryEngine
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
    monkeypatch.setattr(copying, "COMMIT_BYTES", 1_000)
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
