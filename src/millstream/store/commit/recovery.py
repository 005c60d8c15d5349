"""Recovery: what a store does after a write or a sync has failed and nobody knows how far it came.

Writes are refused, reads go on. It is tried at once to make everything that is committed durable
again, then with growing pauses, by the background thread and by callers that want to write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from millstream.clock import Clock
from millstream.errors import MillstreamError, Recovering

PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0


class Recovery:
    """Whether a store recovers, from what, and when it is tried next."""

    def __init__(self, work: Callable[[], None], clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._trying = threading.Lock()
        self._pause_s = PAUSE_S_MIN
        self._due_s = 0.0
        self._told = ""
        self.reason: Recovering | None = None
        """What writers are told meanwhile; None: there is nothing to recover from."""
        self.seq = 0
        """Of the last commit that was known to be durable: it must be found again."""
        self.failure: str | None = None
        """Why the last try failed."""

    def begin(self, cause: str, *, seq: int) -> Recovering:
        """A write has failed; called under the mutex."""
        if self.reason is None:
            self.seq = seq
        self._told = (
            f"an earlier write failed ({cause}), and the store makes sure of what is on disk; "
            "nothing was stored, try again in a moment; reads go on"
        )
        self.reason = Recovering(self._told, cause=cause)
        self._pause_s, self._due_s = PAUSE_S_MIN, 0.0
        return self.reason

    def end(self) -> None:
        """It has succeeded, or is given up; called under the mutex."""
        self.reason = self.failure = None

    def attempt(self) -> None:
        """Try, if it is time to; of several callers one tries, and the others wait for it."""
        with self._trying:
            if self.reason is None or self._clock.seconds() < self._due_s:
                return
            try:
                self._work()
            except MillstreamError as error:
                self.failure = str(error)
                if self.reason is not None:  # the same object: by it writers are admitted again
                    self.reason.message = f"{self._told}. The last try failed: {self.failure}"
                self._due_s = self._clock.seconds() + self._pause_s
                self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
