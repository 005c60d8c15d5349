"""Turns: a bound on the queries of one token that run or wait for a thread.

A semaphore for coroutines and for callbacks of any thread: the look of a claim that waits is begun
by the thread that commits, without the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial


class Turns:
    """The turns of one token; coroutines hold one by `async with`."""

    __slots__ = ("__weakref__", "_free", "_lock", "_looking", "_waiting")

    def __init__(self, turns: int) -> None:
        self._free = turns
        self._lock = threading.Lock()
        self._looking: deque[Callable[[], None]] = deque()
        self._waiting: deque[Callable[[], None]] = deque()

    def begin(self, start: Callable[[], None]) -> None:
        """Call `start` once there is a turn: now, or on the thread that gives one back.

        A claim's look goes before coroutines that wait for a turn: all claims in its line wait for
        the look, also claims of other tokens.
        """
        with self._lock:
            if not self._free:
                self._looking.append(start)
                return
            self._free -= 1
        start()

    def end(self) -> None:
        """Give a turn back; from any thread."""
        with self._lock:
            first = self._looking or self._waiting
            if not first:
                self._free += 1
                return
            start = first.popleft()
        start()

    async def __aenter__(self) -> None:
        """Wait for a turn."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            loop = asyncio.get_running_loop()
            granted: asyncio.Future[None] = loop.create_future()
            start = partial(_grant, loop, granted)
            self._waiting.append(start)
        try:
            await granted
        except BaseException:
            self._withdraw(start)
            raise

    async def __aexit__(self, *error: object) -> None:
        """Give it back."""
        self.end()

    def _withdraw(self, start: Callable[[], None]) -> None:
        """Withdraw a coroutine; a turn that was granted meanwhile goes to the next caller."""
        with self._lock:
            if start in self._waiting:
                self._waiting.remove(start)
                return
        self.end()


def _grant(loop: asyncio.AbstractEventLoop, granted: asyncio.Future[None]) -> None:
    with suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(_settle, granted)


def _settle(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)
