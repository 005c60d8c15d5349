"""A REST interface in this process, over a store in memory, and a client that asks it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.clock import Clock
from millstream.embedded.session import open_store
from millstream.engine.memory.engine import MemoryEngine
from millstream.limits import Limits
from millstream.server.auth.access import ANYONE_HERE, Principal
from millstream.server.core import Core
from millstream.server.docs.endpoints import routes
from millstream.server.listen.guard import Guard
from millstream.server.listen.hot import Head, HotCycle, hot_head
from millstream.server.rest.hot import HotEndpoints
from millstream.server.rest.routing import Paths
from millstream.server.rooms.hub import Hub
from millstream.server.settings import Settings
from millstream.testing.clock import SimulatedClock

TEST_S_MAX = 60

by_hot_paths = False
"""Whether `serving` offers requests to the hot endpoints first; a module's fixture sets it for all."""


def each_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """For a fixture that has all tests of a module run through the framework, and past it."""
    global by_hot_paths
    by_hot_paths = request.param == "hot"
    yield request.param
    by_hot_paths = False


EACH_WAY = pytest.fixture(params=["framework", "hot"], autouse=True, scope="module", name="way")


class Rest(httpx.AsyncClient):
    """A client, with the server's insides at hand."""

    core: Core
    clock: SimulatedClock
    app: Starlette
    asked_by: httpx.ASGITransport


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

    def principal_now(self, scope: Scope, head: Head) -> Principal:
        """The same."""
        return self.principal

    def id_of_hot(self, head: Head) -> str:
        """The same for all."""
        return "1"


class _ToldCycle(HotCycle):
    """One request, whose answer is kept."""

    def __init__(self) -> None:
        self.told: asyncio.Future[httpx.Response] = asyncio.get_running_loop().create_future()

    @property
    def is_gone(self) -> bool:
        """It waits for its answer."""
        return False

    def watch(self, task: asyncio.Task[Any]) -> None:
        """No server stops here."""

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Keep the answer."""
        self.told.set_result(httpx.Response(status, headers=list(headers), content=body))


class HotTransport(httpx.ASGITransport):
    """Offers requests to the hot endpoints first, as a connection does."""

    def __init__(self, app: AsSomebody, core: Core, paths: Paths) -> None:
        super().__init__(app, raise_app_exceptions=True)
        self.taken = 0
        """How many requests the hot endpoints have answered."""
        self._hot = HotEndpoints(core, cast(Guard, app), paths)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Ask the hot endpoints; if they do not take it, the application."""
        url, method = request.url.raw_path, request.method.encode()
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        if (head := hot_head(method, url, headers)) is not None:
            body = await request.aread()
            scope = {"type": "http", "method": "POST", "headers": headers, "state": {}}
            scope |= {"raw_path": url, "query_string": b""}
            cycle = _ToldCycle()
            is_whole = int(request.headers["content-length"]) == len(body)
            if is_whole and self._hot.begin(scope, head, body, cycle):
                self.taken += 1
                return await cycle.told
        return await super().handle_async_request(request)


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
    app = Starlette(routes=[*routes(core)])
    asked = AsSomebody(app, principal)
    transport = httpx.ASGITransport(asked, raise_app_exceptions=True)
    if by_hot_paths:
        transport = HotTransport(asked, core, *routes(core))
    async with Rest(transport=transport, base_url="http://here") as rest:
        rest.core, rest.app, rest.asked_by = core, app, transport
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
