"""Calls that threads make beside each other: the same names as in `millstream.aio.concurrency`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Self

from millstream.threads.runtime import Event, Future


class Beside:
    """Runs calls beside its caller, in up to two threads; their end is waited for."""

    def __init__(self, stop: Event | None = None) -> None:
        self._stop = stop or Event()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="millstream-sync")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown(wait=True)

    def begin(self, call: Callable[[], Any]) -> Future[Any]:
        """Begin a call."""
        return self._threads.submit(call)

    def answers(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """The answers of all calls; or, once all have ended, the first call's error first.

        The first call is made on the caller's thread.
        """
        others = [self.begin(call) for call in calls[1:]]
        try:
            found = [calls[0]()]
        finally:
            for future in others:
                future.exception()  # whatever happens, none goes on behind the caller's back
        return found + [future.result() for future in others]

    def first(self, begun: Iterable[Future[Any]]) -> None:
        """Wait until one of these calls has ended."""
        wait(begun, return_when=FIRST_COMPLETED)

    def pause(self, seconds: float) -> None:
        """Wait, unless the caller is to stop."""
        self._stop.wait(seconds)
