"""A REST interface in this process, over a store in memory, and a client that asks it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.clock import Clock
from millstream.embedded import open_store
from millstream.limits import Limits
from millstream.server.auth.access import ANYONE_HERE, Principal
from millstream.server.core import Core
from millstream.server.docs.endpoints import routes
from millstream.server.rooms.events import enter_stream
from millstream.server.rooms.hub import Hub
from millstream.server.settings import Settings
from millstream.store.memory import MemoryEngine
from millstream.testing.clock import SimulatedClock

TEST_S_MAX = 60


class Rest(httpx.AsyncClient):
    """A client, with the server's insides at hand."""

    core: Core
    clock: SimulatedClock
    app: Starlette


class AsSomebody:
    """Stands in for the access middleware: everybody is the same principal."""

    def __init__(self, app: ASGIApp, principal: Principal) -> None:
        self.app = app
        self.principal = principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say who asks."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["principal"] = self.principal
        await self.app(scope, receive, send)


@asynccontextmanager
async def serving(
    *,
    principal: Principal = ANYONE_HERE,
    settings: Settings | None = None,
    engine: MemoryEngine | None = None,
    clock: Clock | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[Rest]:
    """A client of a server that lives as long as the block."""
    clock = clock or SimulatedClock()
    core = Core(
        open_store(engine or MemoryEngine(), clock=clock, limits=limits), settings or Settings()
    )
    hub = Hub(core, "test")
    core.room_events = partial(enter_stream, hub)
    app = Starlette(routes=[*routes(core)])
    transport = httpx.ASGITransport(AsSomebody(app, principal), raise_app_exceptions=True)
    async with Rest(transport=transport, base_url="http://here") as rest:
        rest.core, rest.app = core, app
        if isinstance(clock, SimulatedClock):
            rest.clock = clock
        try:
            yield rest
        finally:
            await hub.close()
            await core.close()


def served(test: Callable[[Rest], Awaitable[None]]) -> Callable[[], None]:
    """Run a coroutine test with a fresh server."""

    async def run_with_server() -> None:
        async with asyncio.timeout(TEST_S_MAX), serving() as rest:
            await test(rest)

    def run() -> None:
        asyncio.run(run_with_server())

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    run.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
    return run


def looped(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a coroutine test in a loop of its own; its parameters stay."""

    def run(**arguments: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(TEST_S_MAX):
                await test(**arguments)

        asyncio.run(limited())

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


def problem(response: httpx.Response, status: int, title: str) -> dict[str, Any]:
    """The problem that an answer tells; it must be this one."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    found: dict[str, Any] = response.json()
    assert (response.status_code, found["title"]) == (status, title), found
    assert found["status"] == status
    assert found["type"] == f"/docs#error-{title}"
    return found
