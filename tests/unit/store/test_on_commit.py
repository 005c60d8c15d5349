"""Whoever watches a store is told of each commit: its operations, its time, its sync."""

from __future__ import annotations

import threading

import pytest

from millstream.embedded.session import EmbeddedSession, open_store
from millstream.engine.memory.engine import MemoryEngine
from millstream.errors import EndMoved
from millstream.store.commit.ticket import Ticket
from millstream.threads.database import Millstream


def test_every_commit_is_told_with_its_operations() -> None:
    store = open_store(MemoryEngine())
    told: list[tuple[int, float, float, float]] = []
    store.listeners.add(commit=lambda *facts: told.append(facts))
    log = Millstream(EmbeddedSession(store)).log("a")
    log.append(b"x")
    log.append_many([b"x"] * 10)
    assert [operations for operations, *_ in told] == [1, 1]
    assert all(0 <= lock_s + sync_s <= commit_s for _, commit_s, sync_s, lock_s in told)
    store.close()


def test_a_group_that_changed_nothing_is_no_commit() -> None:
    store = open_store(MemoryEngine())
    told: list[tuple[int, float, float, float]] = []
    store.listeners.add(commit=lambda *facts: told.append(facts))
    log = Millstream(EmbeddedSession(store)).log("a")
    with pytest.raises(EndMoved):
        log.append(b"x", expect_end=5)
    assert told == []
    store.close()


def test_those_who_are_committed_together_are_one_group() -> None:
    store = open_store(MemoryEngine())
    told: list[int] = []
    store.listeners.add(commit=lambda operations, *_: told.append(operations))
    done = threading.Semaphore(0)
    tickets = [
        Ticket(lambda tx, n=n: tx.store_ms, on_done=lambda _: done.release())  # type: ignore[misc]
        for n in range(5)
    ]
    log = Millstream(EmbeddedSession(store)).log("a")
    log.append(b"x")
    store.submit([*tickets])
    for _ in tickets:
        assert done.acquire(timeout=30)
    assert told == [1]  # the others only looked
    store.close()
