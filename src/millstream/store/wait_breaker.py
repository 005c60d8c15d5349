"""Breaks off waits for commits, from any thread.

A thread that waits for a commit cannot be cancelled, and a task that is cancelled does not learn which
messages a commit has just claimed for it. So a caller that must be able to end waits calls inside of a
`with` block of its `WaitBreaker`. When another thread calls `end`, a claim ends at once as after its
timeout, and every other wait of a thread raises `WaitBroken`. A wait at a server ends with its timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType


class WaitBroken(BaseException):
    """A wait of this thread was broken off. Like a cancellation, it is no error."""


class WaitBreaker:
    """Ends the waits of one thread or task at a time, inside of a `with` block.

    It has no lock, so that the handler of a signal may call `end`.
    """

    def __init__(self) -> None:
        self.is_ended = False
        self.wake: Callable[[], None] | None = None
        """Ends the present wait."""
        self._token: Token[WaitBreaker | None] | None = None

    def __enter__(self) -> None:
        self._token = _current.set(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._token is not None
        _current.reset(self._token)

    def end(self) -> None:
        """Break off the present wait, and every later one."""
        self.is_ended = True
        wake = self.wake
        if wake is not None:
            wake()


class BreakableWait:
    """A wait, as a `with` block. The breaker of the wait calls `wake`, from any thread."""

    __slots__ = ("_breaker", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._breaker = _current.get()

    def __enter__(self) -> None:
        breaker = self._breaker
        if breaker is not None:
            breaker.wake = self._wake
            if breaker.is_ended:  # perhaps before `end` could see how to end this wait
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


_current: ContextVar[WaitBreaker | None] = ContextVar("millstream_wait_breaker", default=None)
