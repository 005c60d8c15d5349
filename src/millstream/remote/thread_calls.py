"""The requests of threads, and how a thread sleeps until its request is settled."""

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
from millstream.remote.pipeline import Outcome, PendingRequest
from millstream.remote.results import result_of

ORPHANED_S = 1.0
"""How long a caller sleeps before it checks whether another caller still reads."""


class ThreadRequest(PendingRequest):
    """A request whose thread waits until it is settled."""

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
        """Whether the request is settled."""
        return self._outcome is not None

    def is_wanted(self) -> bool:
        """Whether the thread still needs the answer: not after an interrupt or the answer itself."""
        return not self._gone and self._outcome is None

    def abandon(self) -> None:
        """Ignore the answer: the thread was interrupted."""
        self._gone = True

    def refuse(self, unwanted: Callable[[Outcome], None]) -> None:
        """As `abandon`, but pass the answer to `unwanted`, now or when it comes."""
        self._gone, self._unwanted = True, unwanted
        if self._outcome is not None:
            unwanted(self._outcome)

    def settle(self, outcome: Outcome) -> None:
        """Store the answer, unless there is one, and wake the thread."""
        if self._outcome is None:
            self._outcome = outcome
            if self._unwanted is not None:
                self._unwanted(outcome)
        self.wake()

    def wake(self) -> None:
        """Wake the thread; from any thread."""
        try:
            self._wake.release()
        except RuntimeError:
            pass  # the thread is awake, or about to be

    def sleep(self) -> None:
        """Sleep until `wake`, or for a while."""
        self._wake.acquire(timeout=ORPHANED_S)

    def answer(self) -> Raw:
        """Return the answer, or raise it if it is an error."""
        if isinstance(self._outcome, MillstreamError):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome


class Return(PendingRequest):
    """Returns messages that reached no consumer; no thread waits for the answer."""

    __slots__ = ()

    def is_wanted(self) -> bool:
        """Return True: otherwise the lease would hold the messages for long."""
        return True

    def settle(self, outcome: Outcome) -> None:
        """Ignore the answer: messages that were not returned come again when their lease ends."""


def return_of(claim: ClaimMessages, outcome: Outcome) -> Return | None:
    """Return the request that returns the messages of a claim, if it got any."""
    if isinstance(outcome, MillstreamError):
        return None
    lots: list[Lot] = result_of(claim, outcome)
    runs = lots_claimed(lots)
    return Return(ReturnClaims(claim.queue, runs)) if runs else None
