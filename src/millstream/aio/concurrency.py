"""Concurrent calls of coroutines, under the names of `millstream.threads.concurrency`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from millstream.aio.runtime import Event, Future


class Beside:
    """Runs calls beside its caller; what still runs when the block ends is cancelled."""

    def __init__(self, stop: Event | None = None) -> None:
        self._stopping = None if stop is None else asyncio.ensure_future(stop.wait())
        self._begun: set[Future[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pending = [*self._begun, *([] if self._stopping is None else [self._stopping])]
        for future in pending:
            future.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    def begin(self, call: Callable[[], Awaitable[Any]]) -> Future[Any]:
        """Begin a call."""
        future = asyncio.ensure_future(call())
        self._begun.add(future)
        future.add_done_callback(self._begun.discard)
        return future

    async def answers(self, calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """The answers of all calls; or, once all have ended, the first call's error first."""
        answers = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def first(self, calls: Iterable[Future[Any]]) -> None:
        """Wait until one of these calls has ended, or the caller is to stop."""
        stopping = [] if self._stopping is None else [self._stopping]
        await asyncio.wait([*calls, *stopping], return_when=asyncio.FIRST_COMPLETED)

    async def pause(self, seconds: float) -> None:
        """Wait, unless the caller is to stop."""
        if self._stopping is None:
            await asyncio.sleep(seconds)
        else:
            await asyncio.wait([self._stopping], timeout=seconds)
