"""A small application behind the guard, asked in this process: no port, no thread of a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

import millstream
from millstream.clock import Clock
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.server.auth.tokens import WAIT_S, create_token
from millstream.server.core import Core
from millstream.server.listen.guard import Guard
from millstream.server.rest import status, tokens
from millstream.server.rest.routing import Paths
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock
from millstream.threads.database import Millstream

LOCAL = "http://127.0.0.1:8080"
WITH_TOKENS = Settings(auth="on")


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine to its end, in a loop of its own."""

    async def run() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(run())


class Guarded:
    """A core, the application around it, and ways to ask it."""

    def __init__(self, core: Core, extra: list[BaseRoute]) -> None:
        self.core = core
        self.bodies_read = 0
        own = [
            Route("/echo", self._echo, methods=["GET", "POST"]),
            WebSocketRoute("/echo-socket", self._socket),
        ]
        joined = [
            *own,
            Paths(core, [*tokens.endpoint, *status.endpoint]),
            *extra,
        ]
        self.app = Guard(Starlette(routes=joined), core)

    @property
    def ms(self) -> Millstream:
        """The same store, as the command line would open it."""
        return Millstream(EmbeddedSession(self.core.store))

    def token(self, *permissions: str, name: str = "t", expires_ms: int | None = None) -> str:
        """A new token's text."""
        clock = self.core.store.clock
        return create_token(self.ms, name, permissions, expires_ms=expires_ms, clock=clock)[1]

    def let_tokens_age(self) -> None:
        """Let so much time pass that the next request waits for the tokens to be read anew."""
        clock = self.core.store.clock
        assert isinstance(clock, SimulatedClock)
        clock.advance(WAIT_S)

    async def ask(
        self, method: str, path: str, *, bearer: str = "", headers: Any = None, **more: Any
    ) -> httpx.Response:
        """One request."""
        transport = httpx.ASGITransport(self.app)
        head = {**({"authorization": f"Bearer {bearer}"} if bearer else {}), **(headers or {})}
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL) as client:
            return await client.request(method, path, headers=head, **more)

    async def upgrade(
        self, path: str = "/echo-socket", *, query: str = "", headers: Any = None
    ) -> tuple[int, bytes, list[dict[str, Any]]]:
        """Open a socket and close it: the status, the body of a refusal, and what was sent."""
        given = {"host": "127.0.0.1:8080", **(headers or {})}
        scope = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "scheme": "ws",
            "headers": [(k.lower().encode(), v.encode()) for k, v in given.items()],
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        incoming = [
            {"type": "websocket.connect"},
            {"type": "websocket.receive", "bytes": b"hello"},
            {"type": "websocket.disconnect", "code": 1000},
        ]
        sent: list[dict[str, Any]] = []

        async def receive() -> Any:
            return incoming.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        first = sent[0]
        body = b"".join(m.get("body", b"") for m in sent)
        return (101 if first["type"] == "websocket.accept" else first["status"]), body, sent

    async def _echo(self, request: Request) -> JSONResponse:
        self.bodies_read += 1
        body = await request.body()
        state = request.state
        return JSONResponse(
            {"principal": state.principal.name, "id": state.request_id, "size": len(body)}
        )

    async def _socket(self, socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_bytes(await socket.receive_bytes())
        await socket.close()


@asynccontextmanager
async def guarded(
    settings: Settings = WITH_TOKENS,
    *,
    path: Path | None = None,
    clock: Clock | None = None,
    extra: Callable[[Core], list[BaseRoute]] = lambda core: [],
) -> AsyncIterator[Guarded]:
    """An application on a store in memory, or in a file if other handles are to share it."""
    time = clock or SimulatedClock()
    engine = MemoryEngine() if path is None else SqliteEngine(path, durability="relaxed")
    core = Core(open_store(engine, clock=time), settings)
    try:
        yield Guarded(core, extra(core))
    finally:
        await core.close()


def other_handle(path: Path) -> Millstream:
    """The store as another process sees it."""
    return millstream.open(path)
