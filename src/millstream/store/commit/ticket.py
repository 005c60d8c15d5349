"""Tickets: operations that wait for their commit, and the wake-up of the callers of a group."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Any, Generic, TypeVar

from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.interrupts import acquire
from millstream.store.commit.transaction import Operation

T = TypeVar("T")


class Ticket(Struct, Generic[T], eq=False):
    """An operation that waits for its commit, and its result or error after the commit."""

    operation: Operation[T]
    on_done: Callable[[Ticket[T]], None] | None = None
    result: T | None = None
    error: BaseException | None = None
    done: bool = False
    awake: bool = False
    """Whether the caller has noticed the answer."""
    commits: bool = False
    """Whether the caller commits for a group, or is asked to."""
    naps: bool = False
    """Whether the caller wakes without help, soon after the expected end of the running commit."""
    successor: Ticket[Any] | None = None
    """The next ticket in the wake-up chain of the group; the caller wakes this ticket."""
    _wake: Any = None

    @property
    def joins(self) -> Hashable:
        """The key of operations that can run together (`group.Joint`); None if the operation runs alone."""
        return getattr(self.operation, "joins", None)

    @property
    def joint(self) -> bool:
        """Whether the operation can run together with others."""
        return self.joins is not None

    @property
    def has_thread(self) -> bool:
        """Whether the caller has a thread; a coroutine is called back instead."""
        return self.on_done is None

    def prepare_to_wait(self) -> None:
        """Make the lock for `wait`, before another thread can see the ticket."""
        self._wake = allocate_lock()
        self._wake.acquire()

    def wait(self, timeout_s: float = -1) -> bool:
        """Sleep until the ticket is done or must commit; return False after the timeout or at a signal."""
        return acquire(self._wake, timeout_s)

    def wake(self) -> None:
        """Tell the caller that the ticket is done or must commit."""
        on_done = self.on_done
        if on_done is None:
            self.end_wait()
        elif self.done:
            on_done(self)

    def end_wait(self) -> None:
        """End the wait of the caller's thread."""
        if self._wake is not None and self._wake.locked():
            try:
                self._wake.release()
            except RuntimeError:  # another thread released the lock just now
                pass


class TurnWaiter:
    """A caller that waits for the writer's turn, for an interactive transaction."""

    __slots__ = ("is_first", "wake")

    def __init__(self) -> None:
        self.is_first = False
        """Whether the turn is offered to this caller."""
        self.wake = allocate_lock()
        self.wake.acquire()


def held_by_caller() -> InvalidInput:
    """Return the error for a caller that would wait for its own interactive transaction."""
    return InvalidInput(
        "this call would wait for the transaction of `ms.begin()` around it: use the methods of the "
        "transaction (tx.sql, tx.put, tx.append, …), or make the call after its block"
    )


def finish(group: list[Ticket[Any]]) -> Ticket[Any] | None:
    """Answer every caller of a group, and return the last ticket of the wake-up chain."""
    # Callers wake in a chain: threads that wake together only queue for the interpreter's lock.
    asleep = [ticket for ticket in group if ticket._wake is not None and not ticket.commits]
    for ticket, successor in pairwise(asleep):
        ticket.successor = successor
    for ticket in reversed(asleep):
        # In reverse order: a woken thread wakes its successor, which must be marked already.
        ticket.done = True
    for ticket in group:
        if not ticket.done:
            ticket.done = True
            if ticket.on_done is not None:
                ticket.on_done(ticket)
    if not asleep:
        return None
    asleep[0].wake()
    return asleep[-1]
