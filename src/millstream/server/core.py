"""The core of a server: the open store, and the one path by which requests reach it."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from millstream.aio.session import AsyncEmbeddedSession
from millstream.command import Command
from millstream.server.access import Principal
from millstream.server.settings import Settings
from millstream.store.store import Store

T = TypeVar("T")


class Core:
    """What every route of a server shares; made inside the event loop that serves."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.settings = settings
        self.store = store
        self.session = AsyncEmbeddedSession(store)
        self.closing = asyncio.Event()
        """Set once the server is told to stop: whoever waits ends its wait."""

    async def execute(self, principal: Principal, command: Command[T]) -> T:
        """Answer a command for somebody, if they may ask it."""
        principal.check(command)
        return await self.session.execute(command)

    async def close(self) -> None:
        """Finish commits and close the store."""
        self.closing.set()
        await self.session.close()
