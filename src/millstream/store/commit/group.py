"""A group: operations of several callers that are committed together.

Each operation has its own result or error, and a failing operation undoes only its own changes.
Neighbours that are `Joint` run as one operation, if one run is faster than several. Callers of a group
submit at the same time, so operations that declare an `order` may change places: a claim then gets the
records that another caller of its group appends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar

from millstream.errors import StoreError
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transaction import WriteTransaction

T = TypeVar("T")


class Ordered(Protocol):
    """An operation that may change places with its neighbours in a group."""

    order: int
    """The neighbours of a group that have an order run in ascending order, equal ones as they came.

    An operation without an order is a barrier: operations do not move past it."""


class Joint(Protocol[T]):
    """An operation of a kind that runs faster in a batch."""

    joins: Hashable
    """Operations with equal values can run together; an operation with None runs alone."""

    def __call__(self, tx: WriteTransaction) -> T:
        """Run alone."""

    def run_all(self, tx: WriteTransaction, operations: Sequence[Self]) -> list[T] | None:
        """Run several operations, including this object; return None if each has to run alone."""


def run_group(transaction: WriteTransaction, group: list[Ticket[Any]]) -> None:
    """Run the operations of a group of several; a `StoreError` ends the whole group.

    A refusal because of a full disk ends only the refused operation.
    """
    for neighbours in _joined(group):
        if len(neighbours) == 1 or not _run_all(transaction, neighbours):
            for ticket in neighbours:
                run_alone(transaction, ticket)


def run_alone(transaction: WriteTransaction, ticket: Ticket[Any]) -> None:
    """Run an operation by itself, as `run_group` does."""
    try:
        ticket.result = transaction.run(ticket.operation)
    except StoreError as error:
        if error is not transaction.refusal:
            raise
        ticket.error = type(error)(error.message, **error.data)
    except Exception as error:
        ticket.error = error


def _run_all(transaction: WriteTransaction, tickets: list[Ticket[Any]]) -> bool:
    """Run operations together; return False and do nothing if they cannot run together."""
    operations: Any = [ticket.operation for ticket in tickets]
    try:
        results = transaction.run(lambda tx: operations[0].run_all(tx, operations))
    except StoreError as error:
        if error is not transaction.refusal:
            raise
        return False
    except Exception:
        return False  # each operation runs alone now, and only the faulty operation fails
    if results is None:
        return False
    for ticket, result in zip(tickets, results, strict=True):
        ticket.result = result
    return True


def _joined(group: list[Ticket[Any]]) -> Iterator[list[Ticket[Any]]]:
    """Cut a group into runs of neighbours that can run together."""
    joins = [getattr(ticket.operation, "joins", None) for ticket in group]
    if joins[0] is not None and joins.count(joins[0]) == len(joins):
        yield group
        return
    group = _sorted(group)
    joins = [getattr(ticket.operation, "joins", None) for ticket in group]
    neighbours: list[Ticket[Any]] = []
    for ticket, joint, previous in zip(group, joins, [None, *joins], strict=False):
        if neighbours and (joint is None or joint != previous):
            yield neighbours
            neighbours = []
        neighbours.append(ticket)
    yield neighbours


def _sorted(group: list[Ticket[Any]]) -> list[Ticket[Any]]:
    """Sort the operations between two barriers by their order; see `Ordered`."""
    ordered: list[Ticket[Any]] = []
    movable: list[Ticket[Any]] = []
    for ticket in group:
        if hasattr(ticket.operation, "order"):
            movable.append(ticket)
            continue
        if movable:
            ordered += sorted(movable, key=_order)
            movable = []
        ordered.append(ticket)
    return ordered + sorted(movable, key=_order)


def _order(ticket: Ticket[Any]) -> int:
    operation: Any = ticket.operation
    order: int = operation.order
    return order
