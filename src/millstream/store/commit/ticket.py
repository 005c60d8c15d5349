"""A ticket: an operation that waits for its commit, and how the callers of a group are answered."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Any, Generic, TypeVar

from msgspec import Struct

from millstream.store.commit.transaction import Operation

T = TypeVar("T")


class Ticket(Struct, Generic[T], eq=False):
    """One operation that waits for its commit, and the place where its answer will stand."""

    operation: Operation[T]
    on_done: Callable[[Ticket[T]], None] | None = None
    result: T | None = None
    error: BaseException | None = None
    done: bool = False
    awake: bool = False
    """Whether its caller knows that it is done."""
    lead: bool = False
    """Whether its caller leads a group, or is asked to."""
    naps: bool = False
    """Whether its caller wakes by itself, soon after the running commit should be over."""
    successor: Ticket[Any] | None = None
    """The next ticket in the wake-up chain of its group: its caller wakes that one's."""
    _wake: Any = None

    @property
    def joins(self) -> Hashable:
        """With which others its operation batches well (`group.Joint`); None if with none."""
        return getattr(self.operation, "joins", None)

    @property
    def joint(self) -> bool:
        """Whether its operation batches well with others."""
        return self.joins is not None

    @property
    def has_thread(self) -> bool:
        """Whether its caller lends a thread; a coroutine is called back instead."""
        return self.on_done is None

    def prepare_to_wait(self) -> None:
        """Make the lock that `wait` sleeps on; before another thread can see the ticket."""
        self._wake = allocate_lock()
        self._wake.acquire()

    def wait(self, timeout_s: float) -> bool:
        """Sleep until the ticket is done, or its caller is asked to lead; False after so long."""
        return bool(self._wake.acquire(timeout=timeout_s))

    def wake(self) -> None:
        """End the wait."""
        if self.on_done is not None:
            if self.done:
                self.on_done(self)
        elif self._wake is not None and self._wake.locked():
            try:
                self._wake.release()
            except RuntimeError:  # another thread has woken it just now
                pass


def finish(group: list[Ticket[Any]]) -> Ticket[Any] | None:
    """Answer every caller of a group; a second call does what an interrupted first left undone.

    Threads wake one another in a chain, the last of which is returned: woken all at once they would
    only queue for the interpreter.
    """
    asleep = [ticket for ticket in group if ticket._wake is not None and not ticket.lead]
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
