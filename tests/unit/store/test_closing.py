"""Closing ends in time, however much is unfolded and however much upkeep is under way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import millstream
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.limits import Limits
from millstream.store.store import CLOSING_FOLD_S, Store
from millstream.testing import MemoryEngine, Probe, SimulatedClock
from millstream.threads.database import Millstream

GROUPS = 5_000
PART = 250
NO_FOLD = 1_000_000


class SlowClock(SimulatedClock):
    """Each look at it takes a part of the time that closing may fold."""

    ticks = 0

    def seconds(self) -> float:
        self.ticks += 1
        return self.ticks * CLOSING_FOLD_S / 4


def append_groups(ms: Millstream, count: int = GROUPS) -> None:
    for first in range(0, count, PART):
        names = [str(number) for number in range(first, first + PART)]
        ms.log("a").append_many([b"x"] * PART, keys=names)
        ms.queue("q").claim(1)


def lots_unfolded(engine: MemoryEngine, clock: SimulatedClock) -> Store:
    limits = Limits(fold_slice_weight=100, tail_entities_max=NO_FOLD, fold_bytes_min=1)
    store = open_store(engine, limits=limits, clock=clock)
    Probe(store).pause_keeper()
    ms = Millstream(EmbeddedSession(store))
    ms.queue("q", group_by="_key", sources="a")
    append_groups(ms)
    return store


def test_closing_folds_for_a_while_and_the_rest_is_read_when_opening() -> None:
    engine = MemoryEngine()
    store = lots_unfolded(engine, SlowClock())
    before = store.stats()["fold_slices"]
    store.close()
    assert 1 <= store.stats()["fold_slices"] - before <= 4
    assert store.stats()["unfolded_commits"] > 1

    again = open_store(engine.reopen(), clock=SimulatedClock())
    info = Millstream(EmbeddedSession(again)).queue("q").info()
    assert info.available + info.in_flight == GROUPS
    again.close()


def test_closing_folds_everything_where_there_is_time() -> None:
    store = lots_unfolded(MemoryEngine(), SimulatedClock())
    store.close()
    assert store.stats()["unfolded_commits"] == 1


def test_writers_fold_when_the_unfolded_entities_would_grow_without_bound() -> None:
    limits = Limits(tail_entities_max=1_000, fold_bytes_min=1 << 30)
    store = open_store(MemoryEngine(), limits=limits, clock=SimulatedClock())
    Probe(store).pause_keeper()
    ms = Millstream(EmbeddedSession(store))
    ms.queue("q", group_by="_key", sources="a")
    append_groups(ms)
    assert store.stats()["unfolded_entities"] <= 1_000
    assert ms.queue("q").info().available + ms.queue("q").info().in_flight == GROUPS


def test_a_log_of_a_store_that_is_never_open_for_long_forgets_all_the_same() -> None:
    engine = MemoryEngine()
    for _ in range(3):  # the clock stands still: the background's second never comes
        store = open_store(engine, clock=SimulatedClock())
        log = Millstream(EmbeddedSession(store)).log("a")
        log.retain(count=10)
        for _ in range(50):
            log.append_many([b"x" * 100] * 10)
        store.close()
        engine = engine.reopen()

    store = open_store(engine, clock=SimulatedClock())
    info = Millstream(EmbeddedSession(store)).log("a").info()
    store.close()
    assert info is not None
    assert (len(info), info.end_offset) == (10, 1500)
    assert info.bytes < 2 * 10 * 200  # of 1,500 records, 150,000 bytes


def test_bytes_of_a_truncation_just_before_closing_go() -> None:
    engine = MemoryEngine()
    store = open_store(engine, clock=SimulatedClock())
    log = Millstream(EmbeddedSession(store)).log("a")
    for _ in range(200):
        log.append_many([b"x" * 100] * 10)
    log.truncate(before=2_000)
    store.close()

    store = open_store(engine.reopen(), clock=SimulatedClock())
    info = Millstream(EmbeddedSession(store)).log("a").info()
    store.close()
    assert info is not None
    assert info.bytes == 0


def test_a_handle_that_only_read_leaves_upkeep_to_others_when_it_closes(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "store.db") as ms:
        Probe(ms).pause_keeper()
        ms.log("a").append_many([b"x"] * 100)
        ms.log("a").retain(count=10)
    with millstream.open(tmp_path / "store.db") as ms:
        assert len(ms.log("a")) == 100
    with millstream.open(tmp_path / "store.db") as ms:
        assert len(ms.log("a")) == 100


def test_upkeep_leaves_the_other_queues_alone_once_the_store_is_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.store.upkeep.CLOSING_UPKEEP_S", 0.0)
    names = [f"q{number}" for number in range(10)]
    ms = millstream.open(tmp_path / "store.db")
    Probe(ms).pause_keeper()
    for name in names:
        ms.queue(name, group_by="_key", sources="a")
    ms.log("a").append_many([b"x"] * 10, keys=[str(number) for number in range(10)])
    ms.close()

    ms = millstream.open(tmp_path / "store.db")
    store = Probe(ms).store
    closer, began = threading.Thread(target=store.close), threading.Event()

    def close_meanwhile(*_: float) -> None:
        if not began.is_set():
            closer.start()
            while not store.is_closing:
                pass
            began.set()

    store.listeners.add(commit=close_meanwhile)
    store.tend_soon()
    assert began.wait(60)
    closer.join(60)
    assert not closer.is_alive()

    with millstream.open(tmp_path / "store.db") as ms:
        Probe(ms).pause_keeper()
        unrouted = [ms.queue(name).info().unrouted for name in names]
    assert sorted(unrouted) == [0] + [10] * 9
