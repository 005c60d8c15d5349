"""Recovery: the retries of a store after a failed write or sync with an unknown outcome.

Writes are refused and reads go on. The background thread, and callers that want to write, try to make
all committed data durable again: at once, then with growing pauses.

A store could also close for good after a failed sync, since a kernel may drop the pages that it could
not write. Here the engine writes the data again in `recover`, and the last acknowledged commit must be
found on disk before writes are accepted; otherwise the store is poisoned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from millstream.clock import Clock
from millstream.errors import MillstreamError, Recovering

PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0


class Recovery:
    """The cause of a recovery, and the time of the next try."""

    def __init__(self, work: Callable[[], None], clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._trying = threading.Lock()
        self._pause_s = PAUSE_S_MIN
        self._due_s = 0.0
        self._message = ""
        self.reason: Recovering | None = None
        """The error for writers during recovery; None if the store is well."""
        self.seq = 0
        """The sequence of the last durable commit, which recovery must find again."""
        self.failure: str | None = None
        """The error of the last try."""

    def begin(self, cause: str, *, seq: int) -> Recovering:
        """Begin after a failed write; the caller holds the mutex."""
        if self.reason is None:
            self.seq = seq
        self._message = (
            f"an earlier write failed ({cause}), and the store makes sure of what is on disk; "
            "nothing was stored, try again in a moment; reads go on"
        )
        self.reason = Recovering(self._message, cause=cause)
        self._pause_s, self._due_s = PAUSE_S_MIN, 0.0
        return self.reason

    def end(self) -> None:
        """End after a success, or when the store is poisoned; the caller holds the mutex."""
        self.reason = self.failure = None

    def attempt(self) -> None:
        """Try to recover, if a try is due; concurrent callers wait for the caller that tries."""
        with self._trying:
            if self.reason is None or self._clock.seconds() < self._due_s:
                return
            try:
                self._work()
            except MillstreamError as error:
                self.failure = str(error)
                if self.reason is not None:  # keep the object: `admit` compares it by identity
                    self.reason.message = f"{self._message}. The last try failed: {self.failure}"
                self._due_s = self._clock.seconds() + self._pause_s
                self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
