"""Breaks off the waits of a thread, from another thread: the counterpart of a cancelled task.

A thread that waits for a commit cannot be cancelled. A caller that must be able to end such a wait
makes its calls by `WaitBreaker.run`. When another thread calls `end`, the wait raises `WaitBroken` at
once. A wait at a server ends with its timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class WaitBroken(BaseException):
    """A wait of this thread was broken off. Like a cancellation, it is no error."""


class WaitBreaker:
    """Ends the waits of one thread. It has no lock, so that the handler of a signal may call `end`."""

    def __init__(self) -> None:
        self.is_ended = False
        self.wake: Callable[[], None] | None = None
        """Wakes the thread from its present wait."""

    def run(self, call: Callable[[], T]) -> T:
        """Make a call on this thread; `WaitBroken` if `end` breaks off a wait of the call."""
        outer = _current()
        _this_thread.breaker = self
        try:
            return call()
        finally:
            _this_thread.breaker = outer

    def end(self) -> None:
        """Break off the present wait, and every later one."""
        self.is_ended = True
        wake = self.wake
        if wake is not None:
            wake()


class BreakableWait:
    """A wait of this thread, as a `with` block: the breaker of the wait calls `wake`."""

    __slots__ = ("_breaker", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._breaker = _current()

    def __enter__(self) -> None:
        breaker = self._breaker
        if breaker is not None:
            breaker.wake = self._wake
            if breaker.is_ended:  # perhaps before `end` could see how to wake this thread
                self._wake()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        breaker = self._breaker
        if breaker is not None:
            breaker.wake = None
            if breaker.is_ended and error is None:
                raise WaitBroken


_this_thread = threading.local()


def _current() -> WaitBreaker | None:
    breaker: WaitBreaker | None = getattr(_this_thread, "breaker", None)
    return breaker
