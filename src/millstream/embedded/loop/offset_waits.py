"""Callers that wait for an offset of a log, with their timeouts and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from millstream.clock import Clock
from millstream.errors import MillstreamError
from millstream.store.commit.transactor import fresh


class _Wait(Struct, eq=False):
    """A caller that waits for an offset."""

    offset: int
    log_id: int
    until_s: float | None
    answer: asyncio.Future[bool]


class OffsetWaits:
    """The waiting callers of a feed; belongs to the event loop of the feed."""

    def __init__(self, clock: Clock, look_soon: Callable[[], None]) -> None:
        self._clock = clock
        self._look_soon = look_soon
        """Makes the feed look at its log; `settle` or `fail` follows."""
        self._waits: set[_Wait] = set()

    def __len__(self) -> int:
        return len(self._waits)

    async def wait(self, offset: int, timeout_ms: int | None, log_id: int) -> bool:
        """Wait until a record exists at the offset; return False on a timeout.

        The timeout runs from this call. With `log_id`, the wait also ends once the name stands for
        another log.
        """
        clock = self._clock
        until_s = None if timeout_ms is None else clock.seconds() + timeout_ms / 1000
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        wait = _Wait(offset, log_id, until_s, answer)
        self._waits.add(wait)
        self._look_soon()
        try:
            while not answer.done():
                remaining_s = None if until_s is None else until_s - clock.seconds()
                if remaining_s is not None and remaining_s <= 0:
                    self._look_soon()  # the last look decides the answer
                    return await answer
                await asyncio.wait([answer], timeout=remaining_s)
            return answer.result()
        finally:
            self._waits.discard(wait)

    def settle(self, end: int, log_id: int) -> None:
        """Answer waits whose offset exists, or whose timeout is over."""
        now_s = self._clock.seconds()
        for wait in self._waits:
            is_other = bool(wait.log_id and log_id) and wait.log_id != log_id
            if wait.answer.done():
                continue
            if end > wait.offset or is_other:
                wait.answer.set_result(True)
            elif wait.until_s is not None and now_s >= wait.until_s:
                wait.answer.set_result(False)

    def fail(self, error: Exception) -> None:
        """Fail all waits, because the log could not be read."""
        for wait in self._waits:
            if not wait.answer.done():
                is_ours = isinstance(error, MillstreamError)
                wait.answer.set_exception(fresh(error) if is_ours else error)  # type: ignore[arg-type]
