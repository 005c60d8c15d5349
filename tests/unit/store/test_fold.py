"""Folds come in bounded slices, and the tail of unfolded commits stays bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.embedded.session import EmbeddedSession, open_store
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.format import keys
from millstream.format.entries import extent
from millstream.limits import Limits
from millstream.queue.model.bucket import Bucket
from millstream.store.state.fold import Slice
from millstream.store.store import Store
from millstream.testing import Faults, MemoryEngine, Probe, SimulatedClock
from millstream.threads.database import Millstream
from millstream.threads.log import Log

NO_FOLD = 1_000_000


def start(engine: MemoryEngine, limits: Limits) -> tuple[Store, Log]:
    store = open_store(engine, limits=limits, clock=SimulatedClock())
    Probe(store).pause_keeper()
    return store, Log(EmbeddedSession(store), "a")


def deltas(engine: MemoryEngine) -> list[int]:
    return [keys.number(key) for key, _ in engine.survivors() if key[1] == keys.DELTA]


def test_a_slice_takes_so_many_commits_and_the_newest_stays() -> None:
    engine = MemoryEngine()
    store, log = start(engine, Limits(fold_slice_deltas=3, fold_deltas_min=NO_FOLD))
    for _ in range(9):
        log.append(b"x")
    assert deltas(engine) == list(range(1, 11))

    assert store.committer.fold_slice()
    assert deltas(engine) == list(range(4, 11))
    assert store.fold() == 6
    assert deltas(engine) == [10]
    assert store.fold() == 0
    assert store.stats()["unfolded_bytes"] == len(dict(engine.survivors())[keys.delta(10)])


def test_a_slice_ends_with_the_commit_that_reaches_its_bytes() -> None:
    engine = MemoryEngine()
    limits = Limits(fold_slice_bytes=3_000, inline_bytes_max=9_000, fold_deltas_min=NO_FOLD)
    store, log = start(engine, limits)
    log.append(b"")
    store.fold()
    for _ in range(5):
        log.append(b"x" * 2_000)
    log.append(b"x" * 8_000)
    log.append(b"")

    oldest = []
    while store.committer.fold_slice():
        oldest.append(deltas(engine)[0])
    assert oldest == [5, 7, 9]


def test_a_slice_takes_a_commit_that_is_larger_than_a_slice() -> None:
    engine = MemoryEngine()
    limits = Limits(fold_slice_bytes=10, inline_bytes_max=9_000, fold_deltas_min=NO_FOLD)
    store, log = start(engine, limits)
    for _ in range(3):
        log.append(b"x" * 2_000)
    assert store.fold() == 3
    assert [record.offset for record in log.read()] == [0, 1, 2]


def test_writers_fold_when_the_tail_would_grow_without_bound() -> None:
    engine = MemoryEngine()
    limits = Limits(tail_deltas_max=10, fold_slice_deltas=4, fold_deltas_min=NO_FOLD)
    _, log = start(engine, limits)
    for _ in range(100):
        log.append(b"x")
        assert len(deltas(engine)) <= 10
    assert len(list(log.read())) == 100


def test_writers_fold_when_the_bytes_of_the_tail_would_grow_without_bound() -> None:
    engine = MemoryEngine()
    limits = Limits(tail_bytes_max=10_000, inline_bytes_max=2_000, fold_deltas_min=NO_FOLD)
    store, log = start(engine, limits)
    for _ in range(50):
        log.append(b"x" * 1_000)
        assert store.stats()["unfolded_bytes"] <= 10_000
    assert len(list(log.read())) == 50


def test_entities_in_memory_stay_bounded_once_they_are_folded() -> None:
    limits = Limits(entities_cached_max=20, fold_deltas_min=NO_FOLD)
    store, log = start(MemoryEngine(), limits)
    session = EmbeddedSession(store)
    for number in range(50):
        Log(session, f"log {number}").append(b"x")
    store.fold()
    log.append(b"x")
    assert len(store.state.entities) <= 20
    assert len(store.views) <= 20
    assert [Log(session, f"log {number}").end_offset() for number in range(50)] == [1] * 50


def test_single_appends_are_joined_into_longer_entries() -> None:
    engine = MemoryEngine()
    store, log = start(engine, Limits(fold_deltas_min=NO_FOLD))
    for number in range(100):
        log.append(b"%d" % number)
    store.fold()
    log.append(b"last")
    store.fold()
    entries = [key for key, _ in engine.survivors() if key[1] == keys.ENTRY]
    assert len(entries) <= 2
    assert [record.value for record in log.read(40, 43)] == [b"40", b"41", b"42"]


def test_rows_dropped_while_a_slice_is_prepared_are_not_written() -> None:
    engine = MemoryEngine()
    store, log = start(engine, Limits(fold_deltas_min=NO_FOLD))
    for number in range(200):
        log.append(b"%d" % number)
    prepared = Slice(store.state, store.limits)
    prepared.prepare()
    first = min(key for key, _ in store.state.overlay.oldest(store.state.seq) if is_entry(key))
    log_id, _ = keys.pair(first)
    store.run(lambda tx: tx.drop_all(keys.entry(log_id, 0), keys.entry(log_id, 150)))

    assert store.committer.commit_slice(prepared)
    found = [extent(*row)[0] for row in engine.survivors() if is_entry(row[0])]
    assert min(found) == 150
    assert [record.value for record in log.read(199)] == [b"199"]


def is_entry(key: bytes) -> bool:
    return key[1] == keys.ENTRY


def test_a_tail_of_others_is_folded_only_if_they_do_not(tmp_path: Path) -> None:
    limits = Limits(fold_deltas_min=1, fold_slice_deltas=2)
    mine = open_store(SqliteEngine(tmp_path / "store.db"), limits=limits)
    theirs = open_store(SqliteEngine(tmp_path / "store.db"), limits=limits)
    for store in (mine, theirs):
        Probe(store).pause_keeper()
    log = Log(EmbeddedSession(theirs), "a")
    for _ in range(9):
        log.append(b"x")
    mine.refresh()
    assert mine.committer.tail_is_ours()  # it has made the store
    theirs.committer.fold_slice()
    mine.refresh()
    assert not mine.committer.tail_is_ours()  # they fold
    assert mine.committer.tail_is_ours()  # they have not gone on
    Log(EmbeddedSession(mine), "b").append(b"x")
    assert mine.committer.tail_is_ours()
    mine.close()
    theirs.close()


@pytest.mark.parametrize("exponent", [0, 3])
def test_small_buckets_do_not_make_small_slices(exponent: int) -> None:
    store, log = start(MemoryEngine(), Limits(fold_deltas_min=NO_FOLD))
    ms = Millstream(EmbeddedSession(store))
    queue = ms.queue("q", bucket_exponent=exponent)
    queue.put_many([b""] * 200)
    for _ in range(200):
        queue.ack(queue.claim())
    log.append(b"")
    store.fold()
    assert store.stats()["fold_slices"] <= 3, "of about 400 commits, up to 256 per slice"


def test_a_fold_with_nothing_to_do_writes_nothing() -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    store, log = start(engine, Limits(fold_deltas_min=NO_FOLD))
    log.append(b"x")
    store.fold()
    commits = engine.commits
    assert store.fold() == 0
    assert engine.commits == commits


def test_messages_that_are_done_one_by_one_leave_memory_once_they_are_folded() -> None:
    engine = MemoryEngine()
    store, log = start(engine, Limits(fold_deltas_min=NO_FOLD))
    queue = Millstream(EmbeddedSession(store)).queue("q", sources="a", bucket_exponent=2)
    for number in range(1_000):
        log.append(b"%d" % number)
        queue.ack(queue.claim(1))
        if number % 50 == 49:
            store.fold()
    buckets = [key for key in store.state.entities if key[1] == keys.BUCKET]
    assert len(buckets) <= 2
    assert store.state.weight <= 2 * Bucket.weight + len(store.state.entities)
    assert queue.info().done == 1_000
    again = open_store(engine.reopen(), clock=SimulatedClock())
    assert Millstream(EmbeddedSession(again)).queue("q").info().done == 1_000


def test_an_acknowledgement_of_what_has_left_memory_can_be_repeated() -> None:
    store, log = start(MemoryEngine(), Limits(fold_deltas_min=NO_FOLD))
    queue = Millstream(EmbeddedSession(store)).queue("q", sources="a", bucket_exponent=1)
    log.append_many([b"x"] * 10)
    claimed = queue.claim(10)
    queue.ack(claimed)
    log.append(b"y")
    store.fold()
    assert not any(key[1] == keys.BUCKET for key in store.state.entities)
    queue.ack(claimed)
    assert queue.info().done == 10
    assert [message.value for message in queue.claim(10)] == [b"y"]
