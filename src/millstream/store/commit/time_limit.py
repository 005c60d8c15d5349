"""The time limit of interactive transactions: a thread that ends the transactions which last too long.

An interactive transaction keeps all other writers waiting while the application's code runs. If that
code is slow, waits for something, or has lost its transaction, the other writers go on after the limit.

A timer per transaction would start a thread for each. Here one thread of the store sleeps until the
transaction that was open at its last look would expire. It is woken only for an earlier end, so a
transaction that ends in time costs no thread switch.
"""

from __future__ import annotations

import math
import threading
from _thread import get_ident
from typing import Protocol

from millstream.clock import Clock


class Limited(Protocol):
    """A transaction with a time limit."""

    ends_s: float
    """The end of the limit, by the clock of the store."""
    thread_id: int
    """The thread that has begun the transaction."""
    is_over: bool
    """Whether the transaction has ended."""

    def expire(self, reason: str = "") -> None:
        """Roll the transaction back, and let other writers go on; after its end do nothing."""


class TimeLimit:
    """Watches over the interactive transaction of a store; there is at most one at a time."""

    def __init__(self, clock: Clock) -> None:
        self.seconds = clock.seconds
        self._watched: Limited | None = None
        self._looks_s = math.inf
        """The time of the thread's next look."""
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def watch(self, transaction: Limited) -> None:
        """Watch over a transaction until it ends."""
        self._watched = transaction
        if transaction.ends_s < self._looks_s:
            self._wake.set()
            if self._thread is None:
                self._start()

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._stopping = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(
                    target=self._run, name="millstream-limit", daemon=True
                )
                self._thread.start()

    def end_own(self, reason: str) -> None:
        """End the transaction of the calling thread, which would wait for itself otherwise."""
        watched = self._watched
        if watched is not None and watched.thread_id == get_ident():
            watched.expire(reason)

    def _run(self) -> None:
        while not self._stopping:
            self._looks_s = math.inf  # from here on every transaction wakes the thread
            self._wake.clear()
            watched, left_s = self._watched, None
            if watched is not None and not watched.is_over:
                left_s = watched.ends_s - self.seconds()
                if left_s > 0:
                    self._looks_s = watched.ends_s
                else:
                    watched.expire()
                    left_s = None
            if not self._stopping:
                self._wake.wait(left_s)
