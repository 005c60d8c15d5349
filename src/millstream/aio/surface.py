"""What coroutines do otherwise than threads: the same names as in `millstream.threads.surface`.

The other files of nouns in this folder hold for both: those of threads are generated from them.
"""

from __future__ import annotations

import asyncio
from asyncio import Event, Future, Lock
from typing import Any, TypeVar

from millstream.command import AsyncSession, Command

__all__ = ["Entries", "Event", "Future", "Lock", "Unbroken"]

T = TypeVar("T")


class Entries:
    """A mapping cannot be awaited: coroutines have the methods alone."""


class Unbroken:
    """Runs a command to its end, also if the coroutine that asked for it is cancelled."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._last: Future[Any] | None = None

    async def execute(self, command: Command[T]) -> T:
        """The command's answer."""
        running = asyncio.ensure_future(self._session.execute(command))
        self._last = running
        return await asyncio.shield(running)

    async def ended(self) -> None:
        """Wait until the last command has ended, however it did."""
        if self._last is not None:
            await asyncio.wait([self._last])
