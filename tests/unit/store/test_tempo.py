"""Commits on the thread of an event loop: only while they are fast and wait for nothing else."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from millstream.embedded.session import open_store
from millstream.engine.protocol import Engine
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.limits import Limits
from millstream.store.commit.gather import FAST_S, KEPT, WORST_S, Tempo
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.store import Store
from millstream.testing import MemoryEngine, Probe, SimulatedClock

SLOW_S = 10 * FAST_S
PATIENCE_S = 60


@pytest.mark.parametrize(
    ("took_s", "fast"),
    [
        ([0.0] * (KEPT - 1), False),
        ([FAST_S] * KEPT, True),
        ([SLOW_S] * KEPT, False),
        ([0.0] * (KEPT - 1) + [WORST_S * 2], False),
        ([WORST_S * 2] + [0.0] * KEPT, True),
        ([0.0] * KEPT + [FAST_S * 2] * (KEPT // 2 + 1), False),
    ],
)
def test_commits_are_fast_if_the_last_were(took_s: list[float], fast: bool) -> None:
    tempo = Tempo()
    for one_s in took_s:
        tempo.note(one_s)
    assert tempo.is_fast is fast


def commit(store: Store, *, light: bool = True) -> str:
    """Commit as a coroutine does; answers the name of the thread that did it."""
    threads: list[str] = []
    landed = threading.Event()

    def work(tx: WriteTransaction) -> int:
        threads.append(threading.current_thread().name)
        return tx.take_ids(1)

    ticket: Ticket[Any] = Ticket(work, lambda _: landed.set())
    store.submit([ticket], light=light)
    assert landed.wait(PATIENCE_S)
    assert ticket.error is None
    return threads[-1]


def fast_store(engine: Engine, **limits: int) -> Store:
    """A store whose commits took no time at all."""
    store = open_store(engine, limits=Limits(**limits), clock=SimulatedClock())
    Probe(store).pause_keeper()
    for _ in range(KEPT):
        commit(store)
    assert store.is_fast
    return store


HERE = threading.current_thread().name


def test_a_light_commit_is_made_by_the_calling_thread_once_commits_are_fast() -> None:
    store = open_store(MemoryEngine(), clock=SimulatedClock())
    assert commit(store) != HERE
    store.close()
    store = fast_store(MemoryEngine())
    assert commit(store) == HERE
    assert commit(store, light=False) != HERE
    store.close()


def test_slow_commits_are_made_by_the_transactors_thread() -> None:
    clock = SimulatedClock()
    store = open_store(MemoryEngine(), clock=clock)
    for _ in range(KEPT):
        commit(store)

    def slow(step: str) -> None:
        if step == "put":
            clock.advance(SLOW_S)

    assert isinstance(store.engine, MemoryEngine)
    store.engine.faults = slow
    assert [commit(store) for _ in range(KEPT)][-1] != HERE
    assert not store.is_fast
    store.engine.faults = None
    assert [commit(store) for _ in range(2 * KEPT)][-1] == HERE
    store.close()


def test_a_turn_that_another_thread_has_is_not_waited_for() -> None:
    store = fast_store(MemoryEngine())
    landed = threading.Event()
    with store.hold():
        store.submit([Ticket(lambda tx: tx.take_ids(1), lambda _: landed.set())], light=True)
        assert not landed.is_set()
    assert landed.wait(PATIENCE_S)
    assert commit(store) == HERE
    store.close()


def test_a_lock_that_another_process_has_is_not_waited_for(tmp_path: Path) -> None:
    store = fast_store(SqliteEngine(tmp_path / "a.db"))
    other = SqliteEngine(tmp_path / "a.db")
    landed = threading.Event()
    ticket: Ticket[Any] = Ticket(lambda tx: tx.take_ids(1), lambda _: landed.set())
    with other.write():
        store.submit([ticket], light=True)
        assert not landed.is_set()
    assert landed.wait(PATIENCE_S)
    assert ticket.error is None
    assert commit(store) == HERE
    other.close()
    store.close()


def test_a_fold_that_is_due_is_left_to_the_transactors_thread() -> None:
    store = fast_store(MemoryEngine(), tail_deltas_max=2 * KEPT, fold_deltas_min=KEPT)
    threads = [commit(store) for _ in range(3 * KEPT)]
    assert HERE in threads
    assert set(threads) != {HERE}
    assert store.stats()["fold_slices"] > 0
    assert store.stats()["unfolded_commits"] <= 2 * KEPT + 1
    store.close()
