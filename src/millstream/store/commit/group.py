"""A group: operations of several callers that are committed together.

Each has its own result or its own error, and one that fails undoes itself alone. Neighbours that are
`Joint` run as one operation, where that is faster than each by itself. Callers of a group asked at the
same time, so an operation may run behind others that came right after it, if both declare an `order`:
this is how a claim gets the records that another caller of its group appends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar

from millstream.errors import StoreError
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.commit.uninterrupted import may_be_an_interrupt

T = TypeVar("T")


class Ordered(Protocol):
    """An operation that may change places with its neighbours in a group."""

    order: int
    """The neighbours of a group that have an order run in ascending order, equal ones as they came.

    An operation without an order is a barrier: no other operation moves past it."""


class Joint(Protocol[T]):
    """An operation that batches well: several of its kind run faster as one."""

    joins: Hashable
    """Operations that have the same can run together; None: this one runs alone."""

    def __call__(self, tx: WriteTransaction) -> T:
        """Run alone."""

    def run_all(self, tx: WriteTransaction, operations: Sequence[Self]) -> list[T] | None:
        """Run as many, this one among them; their results, or None if each has to run alone."""


def run_group(transaction: WriteTransaction, group: list[Ticket[Any]]) -> None:
    """Run the operations of a group; a `StoreError` means the end of all of them.

    A refusal for want of room ends only the operation that it meets.
    """
    if len(group) == 1:
        _run(transaction, group[0])
        return
    for some in _joined(group):
        if len(some) == 1 or not _run_all(transaction, some):
            for ticket in some:
                _run(transaction, ticket)


def _run(transaction: WriteTransaction, ticket: Ticket[Any]) -> None:
    try:
        ticket.result = transaction.run(ticket.operation)
    except StoreError as error:
        if error is not transaction.refusal:
            raise
        ticket.error = type(error)(error.message, **error.data)
    except Exception as error:
        if may_be_an_interrupt(error):
            raise
        ticket.error = error


def _run_all(transaction: WriteTransaction, tickets: list[Ticket[Any]]) -> bool:
    """Run operations together; False, and nothing done, if that is not possible."""
    operations: Any = [ticket.operation for ticket in tickets]
    try:
        results = transaction.run(lambda tx: operations[0].run_all(tx, operations))
    except StoreError as error:
        if error is not transaction.refusal:
            raise
        return False
    except Exception as error:
        if may_be_an_interrupt(error):
            raise
        return False  # each runs alone then, and only the one at fault gets the error
    if results is None:
        return False
    for ticket, result in zip(tickets, results, strict=True):
        ticket.result = result
    return True


def _joined(group: list[Ticket[Any]]) -> Iterator[list[Ticket[Any]]]:
    """A group cut into those neighbours that can run together."""
    joins = [getattr(ticket.operation, "joins", None) for ticket in group]
    if joins[0] is not None and joins.count(joins[0]) == len(joins):
        yield group
        return
    group = _sorted(group)
    joins = [getattr(ticket.operation, "joins", None) for ticket in group]
    some: list[Ticket[Any]] = []
    for ticket, own, before in zip(group, joins, [None, *joins], strict=False):
        if some and (own is None or own != before):
            yield some
            some = []
        some.append(ticket)
    yield some


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
