"""Calls: the requests of threads, and how a thread sleeps until its own is settled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from millstream.command import Command
from millstream.errors import MillstreamError
from millstream.queue.commands import ClaimMessages, ReturnClaims
from millstream.queue.model.message import Lot
from millstream.queue.runs import lots_claimed
from millstream.remote.pipeline import Asked, Outcome
from millstream.remote.results import result_of

ORPHANED_S = 1.0
"""How long a caller sleeps before it looks whether still another one reads."""


class Call(Asked):
    """A request of a thread that waits until it is settled."""

    __slots__ = ("_gone", "_outcome", "_unwanted", "_wake")

    def __init__(self, command: Command[Any]) -> None:
        super().__init__(command)
        self._outcome: Outcome | None = None
        self._gone = False
        self._unwanted: Callable[[Outcome], None] | None = None
        self._wake = threading.Lock()
        self._wake.acquire()

    @property
    def is_done(self) -> bool:
        """Whether it is settled."""
        return self._outcome is not None

    def is_wanted(self) -> bool:
        """Not if its thread was interrupted, or it is settled."""
        return not self._gone and self._outcome is None

    def abandon(self) -> None:
        """Its thread was interrupted: the answer, if there is one, is passed over."""
        self._gone = True

    def refuse(self, unwanted: Callable[[Outcome], None]) -> None:
        """As `abandon`; but `unwanted` is told the answer, which is there or may yet come."""
        self._gone, self._unwanted = True, unwanted
        if self._outcome is not None:
            unwanted(self._outcome)

    def settle(self, outcome: Outcome) -> None:
        """Note the answer, if there is none yet, and wake the thread."""
        if self._outcome is None:
            self._outcome = outcome
            if self._unwanted is not None:
                self._unwanted(outcome)
        self.wake()

    def wake(self) -> None:
        """Have the thread look again; from any thread."""
        try:
            self._wake.release()
        except RuntimeError:
            pass  # it is awake, or about to be

    def sleep(self) -> None:
        """Until it is woken; or for a while."""
        self._wake.acquire(timeout=ORPHANED_S)

    def answer(self) -> Raw:
        """What was answered; an error is raised."""
        if isinstance(self._outcome, MillstreamError):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome


class Return(Asked):
    """Gives back messages that reached no consumer; no thread waits for the answer."""

    __slots__ = ()

    def is_wanted(self) -> bool:
        """Always: the lease would hold them for long."""
        return True

    def settle(self, outcome: Outcome) -> None:
        """Whatever it is: what could not be given back comes again when its lease ends."""


def return_of(claim: ClaimMessages, outcome: Outcome) -> Return | None:
    """What gives back the messages of a claim, if it got any."""
    if isinstance(outcome, MillstreamError):
        return None
    found: list[Lot] = result_of(claim, outcome)
    runs = lots_claimed(found)
    return Return(ReturnClaims(claim.queue, runs)) if runs else None
