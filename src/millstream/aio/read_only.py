"""A read-only store: its session answers only commands without changes."""

from __future__ import annotations

from typing import TypeVar

from millstream.clock import Clock
from millstream.command import AsyncSession, Command, check_reads
from millstream.limits import Limits

T = TypeVar("T")


class ReadOnly:
    """A session that refuses to write."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    @property
    def limits(self) -> Limits:
        """Those of the session beneath."""
        return self._session.limits

    @property
    def clock(self) -> Clock:
        """That of the session beneath."""
        return self._session.clock

    async def execute(self, command: Command[T]) -> T:
        """Answer a command that changes nothing."""
        check_reads(command)
        return await self._session.execute(command)

    async def close(self) -> None:
        """End the session."""
        await self._session.close()
