"""A large deletion that is stopped at every single step: what is left is healthy, and goes later.

A queue or a log that is deleted is gone with one commit. Its rows go in the commits after that, some
in each; here so few that there are many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.doctor import examine
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.engine.commit import Commit
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.format import keys
from millstream.log.rules import ancestry, retention
from millstream.queue.rules import operations
from millstream.queue.service.upkeep import QueueUpkeep
from millstream.replica import chain
from millstream.replica.commands import SummarizeLog
from millstream.replica.copies import marks
from millstream.store.store import Store
from millstream.testing import Crash, Faults, MemoryEngine, Probe, SimulatedClock
from millstream.threads.database import Millstream

pytestmark = pytest.mark.faults

QUEUE_ROWS = (
    keys.BUCKET,
    keys.GROUP,
    keys.ROSTER,
    keys.RETRY,
    keys.SCHEDULE,
    keys.READY,
    keys.MEMBER,
    keys.SEEN,
    keys.SEEN_UNTIL,
    keys.AGING,
    keys.REMAINS,
)
LOG_ROWS = (keys.ENTRY, keys.HEAD, keys.FORK, keys.FORKS, keys.MARKS)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "BUCKETS_PER_DELETION", 1)
    monkeypatch.setattr(operations, "ROWS_PER_DELETION", 2)
    monkeypatch.setattr(ancestry, "FORKS_PER_STEP", 1)
    monkeypatch.setattr(ancestry, "MARK_ROWS_PER_STEP", 1)
    monkeypatch.setattr(retention, "ENTRIES_PER_SLICE", 2)
    monkeypatch.setattr(marks, "MARKS_PER_ROW", 2)
    monkeypatch.setattr(chain, "PIECE_RECORDS_MAX", 2)


def open_over(engine: MemoryEngine) -> Millstream:
    """A store whose background thread never starts: every step is taken by the test."""
    store = open_store(engine, clock=SimulatedClock())
    Probe(store).pause_keeper()
    return Millstream(EmbeddedSession(store))


def store_of(ms: Millstream) -> Store:
    return Probe(ms).store


def with_queue(ms: Millstream) -> None:
    """A queue of several buckets, with rows of every type that a queue has."""
    queue = ms.queue("q", bucket_exponent=0, group_by="g", dedup_by="d", priority_by="p")
    for number in range(6):
        queue.put(b"x", group=f"g{number % 2}", dedup=str(number), priority=number)
        queue.put(b"y", delay=60, dedup=f"y{number}")
    queue.ack(queue.claim(2, consumer="w"))
    queue.peek()
    ms.create_queue("other").put(b"stays")
    ms.fold()


def delete_queue(ms: Millstream) -> None:
    ms.queue("q").delete()
    for upkeep in (QueueUpkeep(), retention.LogUpkeep()):
        while upkeep(store_of(ms)):
            pass


def with_forks(ms: Millstream) -> None:
    """A log in the middle of a line of forks, with children and with marks."""
    ms.log("a").append_many([b"0", b"1"])
    middle = ms.log("a").fork("b")
    for _ in range(5):
        middle.append_many([b"2", b"3"])
    for name in ("c", "d", "e"):
        middle.fork(name).truncate(before=middle.end_offset())
    ms.session.execute(SummarizeLog("b"))
    ms.fold()


def delete_log(ms: Millstream) -> None:
    store = store_of(ms)
    ms.log("b").delete()
    for _ in range(3):
        for log_id in range(1, 6):
            while retention.tend(store, log_id):
                ms.fold()
    ms.fold()


def left(engine: MemoryEngine) -> list[bytes]:
    """The rows that are left of the queue, whose id is 1, and of the log in the middle: 2."""
    found = []
    for key, _ in engine.survivors():
        number = int.from_bytes(key[2:10], "big")
        if key[1] in QUEUE_ROWS and number in (0, 1):
            found.append(key)
        if key[1] in LOG_ROWS and number == 2:
            found.append(key)
    return found


def stops(
    make: Callable[[Millstream], None], delete: Callable[[Millstream], None]
) -> Iterator[int]:
    """The commits of a deletion, as steps of the engine."""
    faults = Faults()
    ms = open_over(MemoryEngine(faults=faults))
    make(ms)
    before = len(faults.steps)
    delete(ms)
    for index, step in enumerate(faults.steps[before:], start=before):
        if step in ("commit", "committed"):
            yield index


def as_file(engine: MemoryEngine, path: Path) -> Path:
    """The same rows in a file, for the doctor."""
    path.unlink(missing_ok=True)
    file = SqliteEngine(path)
    with file.write() as writer:
        writer.commit(Commit(engine.survivors()))
    file.close()
    return path


@pytest.mark.parametrize(
    ("make", "delete"), [(with_queue, delete_queue), (with_forks, delete_log)], ids=["queue", "log"]
)
def test_a_deletion_that_is_stopped_between_two_commits_goes_on_later(
    tmp_path: Path, make: Callable[[Millstream], None], delete: Callable[[Millstream], None]
) -> None:
    steps = list(stops(make, delete))
    assert len(steps) > 12
    for index in steps:
        faults = Faults()
        engine = MemoryEngine(faults=faults)
        ms = open_over(engine)
        make(ms)
        assert left(engine)
        faults.at(index, Crash())
        with pytest.raises(Crash):
            delete(ms)
        found = examine(as_file(engine, tmp_path / "s.db")).problems
        assert found == [], f"step {index}"

        again = engine.reopen()
        ms = open_over(again)
        delete(ms)
        ms.log("a").append(b"the newest commit stays")
        ms.fold()
        assert left(again) == [], f"step {index}"
        assert examine(as_file(again, tmp_path / "s.db")).problems == [], f"step {index}"
