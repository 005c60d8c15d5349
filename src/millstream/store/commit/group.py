"""A group: operations of several callers that are committed together.

Each has its own result or its own error, and one that fails undoes itself alone. Neighbours that are
`Joint` run as one operation, where that is faster than each by itself. Callers of a group asked at the
same time, so a claim may run behind the appends that came right after it: it then gets what they bring,
in the commit that brings it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Literal, Protocol, Self, TypeVar

from millstream.errors import StoreError
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.commit.uninterrupted import may_be_an_interrupt

T = TypeVar("T")


Role = Literal["brings", "takes"]
"""What an operation may say of itself, as `role`: it brings messages, or it takes what there is."""


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
    group = _in_turn(group)
    joins = [getattr(ticket.operation, "joins", None) for ticket in group]
    some: list[Ticket[Any]] = []
    for ticket, own, before in zip(group, joins, [None, *joins], strict=False):
        if some and (own is None or own != before):
            yield some
            some = []
        some.append(ticket)
    yield some


def _in_turn(group: list[Ticket[Any]]) -> list[Ticket[Any]]:
    """A group with those that take behind those that bring; the others keep all before them there."""
    found: list[Ticket[Any]] = []
    takers: list[Ticket[Any]] = []
    for ticket in group:
        role: Role | None = getattr(ticket.operation, "role", None)
        if role == "takes":
            takers.append(ticket)
            continue
        if role is None:
            found += takers
            takers = []
        found.append(ticket)
    return found + takers
