"""The core of a server: the open store, and the one path by which requests reach it."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from msgspec.structs import replace

from millstream.aio.session import AsyncEmbeddedSession
from millstream.command import Command
from millstream.log.commands import ListLogs
from millstream.queue.commands import ListQueues
from millstream.server.access import Principal, visible
from millstream.server.meter import Meter
from millstream.server.quota import Quota
from millstream.server.settings import Settings
from millstream.server.tokens import Tokens
from millstream.server.tracing import Tracer
from millstream.store.store import Store

T = TypeVar("T")

LISTED_AT_ONCE = 1_000
"""Names looked at in one step of a listing, of which somebody may see only a few."""


class Core:
    """What every route of a server shares; made inside the event loop that serves."""

    def __init__(self, store: Store, settings: Settings) -> None:
        settings.check()
        self.settings = settings
        self.store = store
        self.session = AsyncEmbeddedSession(store)
        self.closing = asyncio.Event()
        """Set once the server is told to stop: whoever waits ends its wait."""
        self.tokens = Tokens(self.session)
        self.quota = Quota(settings, store.clock)
        self.meter = Meter()
        self.tracer = Tracer()

    async def execute(self, principal: Principal, command: Command[T]) -> T:
        """Answer a command for somebody, if they may ask it."""
        began_s, kind = self.store.clock.seconds(), type(command)
        try:
            await self.tokens.confirm(principal)
            principal.check(command)
            with self.tracer.command(command):
                if isinstance(command, ListLogs | ListQueues):
                    answer: T = await self._list(principal, command)
                else:
                    answer = await self.session.execute(command)
        except Exception as error:
            self.meter.failed(kind, error)
            raise
        self.meter.answered(kind, self.store.clock.seconds() - began_s, self.store.state.seq)
        self.tracer.answered(command, answer)
        return answer

    async def _list(self, principal: Principal, command: Any) -> Any:
        """A page of what somebody may see: an empty one means that there is no more."""
        found: list[Any] = []
        step = replace(command, limit=max(command.limit, LISTED_AT_ONCE))
        while len(found) < command.limit:
            page: list[Any] = await self.session.execute(step)
            found += visible(principal, page)
            if len(page) < step.limit:
                break
            step = replace(step, after=page[-1].name)
        return found[: command.limit]

    async def close(self) -> None:
        """Finish commits and close the store."""
        self.closing.set()
        await self.tokens.close()
        await self.session.close()
