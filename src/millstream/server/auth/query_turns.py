"""Turns: a bound on the queries of one token that run or wait for a thread.

A semaphore for the coroutines of one event loop, with a second line for looks of claims: all claims in
a queue's line wait for the look, also claims of other tokens.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """The turns of one token; coroutines hold one by `async with`."""

    __slots__ = ("__weakref__", "_free", "_looking", "_waiting")

    def __init__(self, turns: int) -> None:
        self._free = turns
        self._looking: deque[asyncio.Future[None]] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def for_looks(self) -> _LookTurns:
        """A turn of a claim's look, which goes before coroutines that wait for a turn."""
        return _LookTurns(self)

    def end(self) -> None:
        """Give a turn back."""
        first = self._looking or self._waiting
        if not first:
            self._free += 1
            return
        granted = first.popleft()
        if not granted.done():  # else its coroutine was cancelled, and gives the turn back
            granted.set_result(None)

    async def __aenter__(self) -> None:
        """Wait for a turn."""
        await self._begin(self._waiting)

    async def __aexit__(self, *error: object) -> None:
        """Give it back."""
        self.end()

    async def begin_look(self) -> None:
        """Wait for a turn of a look."""
        await self._begin(self._looking)

    async def _begin(self, waiting: deque[asyncio.Future[None]]) -> None:
        if self._free:
            self._free -= 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(granted)
        try:
            await granted
        except BaseException:
            if granted in waiting:
                waiting.remove(granted)
            else:  # granted meanwhile: the next caller gets the turn
                self.end()
            raise


class _LookTurns:
    """The turns of a token, for looks."""

    __slots__ = ("_turns",)

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def __aenter__(self) -> None:
        """Wait for a turn, ahead of other queries."""
        await self._turns.begin_look()

    async def __aexit__(self, *error: object) -> None:
        """Give it back."""
        self._turns.end()
