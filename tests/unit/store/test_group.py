"""A group: who can, runs together; whoever fails, fails alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millstream.embedded.session import open_store
from millstream.errors import InvalidInput, WriteFailed
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.store import Store
from millstream.testing import MemoryEngine, Probe, SimulatedClock


class Counting:
    """Takes message ids, for itself or for all of its kind; tells who ran how."""

    def __init__(self, ran: list[Any], joins: str | None = "a", *, bad: bool = False) -> None:
        self.joins = joins
        self.bad = bad
        self._ran = ran

    def __call__(self, tx: WriteTransaction) -> int:
        self._ran.append(1)
        first = tx.take_ids(1)
        if self.bad:
            raise InvalidInput("no")
        return first

    def run_all(self, tx: WriteTransaction, operations: Sequence[Counting]) -> list[int] | None:
        self._ran.append(len(operations))
        first = tx.take_ids(len(operations))
        if any(one.bad for one in operations):
            raise InvalidInput("one of them")
        return list(range(first, first + len(operations)))


def commit(
    store: Store, operations: Sequence[Callable[[WriteTransaction], Any]]
) -> list[Ticket[Any]]:
    """Run operations as one group."""
    over = threading.Semaphore(0)
    tickets = [Ticket(one, lambda _: over.release()) for one in operations]
    store.submit(tickets)
    for _ in tickets:
        assert over.acquire(timeout=60)
    return tickets


@pytest.fixture
def store() -> Store:
    made = open_store(MemoryEngine(), clock=SimulatedClock())
    Probe(made).pause_keeper()
    return made


def test_neighbours_of_one_kind_run_together_and_the_order_is_kept(store: Store) -> None:
    ran: list[Any] = []
    kinds = ["a", "a", "b", "a", "a", "a", None, None]
    tickets = commit(store, [Counting(ran, joins) for joins in kinds])
    assert ran == [2, 1, 3, 1, 1]
    first = tickets[0].result
    assert [ticket.result for ticket in tickets] == list(range(first, first + 8))


def test_those_who_know_of_no_others_run_alone(store: Store) -> None:
    assert len({ticket.result for ticket in commit(store, [lambda tx: tx.take_ids(1)] * 3)}) == 3


def test_one_that_fails_takes_nobody_along_and_leaves_nothing_behind(store: Store) -> None:
    ran: list[Any] = []
    good, bad, last = commit(store, [Counting(ran), Counting(ran, bad=True), Counting(ran)])
    assert ran == [3, 1, 1, 1]
    assert isinstance(bad.error, InvalidInput)
    assert last.result == good.result + 1


def test_if_it_is_not_possible_each_runs_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "run_all", lambda *_: None)
    ran: list[Any] = []
    assert all(ticket.error is None for ticket in commit(store, [Counting(ran), Counting(ran)]))
    assert ran == [1, 1]


def test_a_store_that_fails_fails_for_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise WriteFailed("disk full")

    monkeypatch.setattr(Counting, "run_all", fail)
    tickets = commit(store, [Counting([]), Counting([]), lambda tx: tx.take_ids(1)])
    assert all(isinstance(ticket.error, WriteFailed) for ticket in tickets)
    assert commit(store, [lambda tx: tx.take_ids(1)])[0].error is None


def test_ordered_operations_are_sorted_between_barriers(store: Store) -> None:
    ran: list[str] = []

    class Acting:
        def __init__(self, name: str) -> None:
            self.name = name
            if name[0] != "x":
                self.order = {"b": 0, "t": 1}[name[0]]

        def __call__(self, tx: WriteTransaction) -> str:
            ran.append(self.name)
            return self.name

    names = ["t1", "b1", "t2", "b2", "x1", "t3", "x2", "t4", "b3"]
    tickets = commit(store, [Acting(name) for name in names])
    assert [ticket.result for ticket in tickets] == names
    assert ran == ["b1", "b2", "t1", "t2", "x1", "t3", "x2", "b3", "t4"]


def test_two_listeners_add_operations_to_the_same_group(store: Store) -> None:
    told: list[tuple[str, Any]] = []

    def joining(name: str) -> Callable[[list[Ticket[Any]]], list[Ticket[Any]]]:
        def listen(group: list[Ticket[Any]]) -> list[Ticket[Any]]:
            assert len(group) == 1, "a listener sees the group, not what another one has added"
            return [Ticket(lambda tx: tx.take_ids(1), lambda ticket: told.append((name, ticket)))]

        return listen

    for listener in (joining("first"), joining("second")):
        store.listeners.add(group=listener)
        store.listeners.add(group=listener)  # it is there already
    sequence = store.seq
    result = store.run(lambda tx: tx.take_ids(1))
    assert store.seq == sequence + 1
    assert [(name, ticket.result) for name, ticket in told] == [
        ("first", result + 1),
        ("second", result + 2),
    ]


def test_a_listener_whose_operation_fails_harms_no_other(store: Store) -> None:
    told: list[Ticket[Any]] = []

    def fail(tx: WriteTransaction) -> None:
        raise InvalidInput("no")

    store.listeners.add(group=lambda group: [Ticket(fail, told.append)])
    store.listeners.add(group=lambda group: [Ticket(lambda tx: tx.take_ids(1), told.append)])
    result = store.run(lambda tx: tx.take_ids(1))
    failed, joined = told
    assert isinstance(failed.error, InvalidInput)
    assert joined.result == result + 1
