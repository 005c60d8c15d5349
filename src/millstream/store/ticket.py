"""A ticket: an operation that waits for its commit, and how those of a group are answered."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Generic, TypeVar

from msgspec import Struct

from millstream.store.transaction import Operation

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
    successor: Ticket[Any] | None = None
    """Who was answered together with it and sleeps until its caller has woken up."""
    _wake: Any = None

    @property
    def joint(self) -> bool:
        """Whether its operation is one that is faster together with others."""
        return getattr(self.operation, "joins", None) is not None

    def prepare_to_wait(self) -> None:
        """Make the lock that `wait` sleeps on; before anybody can see the ticket."""
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
            except RuntimeError:  # somebody else was faster
                pass

    def answer(self) -> T:
        """The result, or the error raised anew."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


def finish(group: list[Ticket[Any]]) -> Ticket[Any] | None:
    """Everybody is answered; a second call does what the first has left undone.

    Threads are woken one by the other, up to the one that is returned: all at once they would only
    fight for the interpreter.
    """
    asleep = [ticket for ticket in group if ticket._wake is not None and not ticket.lead]
    for ticket, successor in pairwise(asleep):
        ticket.successor = successor
    for ticket in reversed(asleep):
        ticket.done = True  # the last first: who finds himself done wakes one who is
    for ticket in group:
        if not ticket.done:
            ticket.done = True
            if ticket.on_done is not None:
                ticket.wake()
    if not asleep:
        return None
    asleep[0].wake()
    return asleep[-1]
