"""The streaming socket: frames of requests in, frames of answers out.

The server greets a new client, and a `Conversation` serves it. The connection ends when the token is
revoked or expires, even if the client only listens. `docs/PROTOCOL.md` has the bytes.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from millstream import __version__
from millstream.errors import MillstreamError, Unauthenticated
from millstream.format.keys import STORE_KEY
from millstream.server.auth.access import NODE
from millstream.server.cluster.role import ClusterRole
from millstream.server.core import Core
from millstream.server.socket.conversation import NODE_REQUESTS_MAX, Conversation
from millstream.store.state.instance import Instance
from millstream.wire import commands as wire

PATH = "/socket"

LOOK_S = 0.5
"""How often the server checks the tokens of open connections."""


class Socket:
    """The route of the socket: greets each client, and runs its conversation."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._hello = b""
        self._with_token: set[Conversation] = set()
        self._looking: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        if wire.SUBPROTOCOL not in scope["subprotocols"]:
            await _refuse(send, f"ask for the subprotocol {wire.SUBPROTOCOL}")
            return
        if not self._hello:
            self._hello = await asyncio.to_thread(_greeting, self._core)
        hello = self._hello
        if self._core.seat is not None:
            asked_as_node = scope["state"]["principal"] is NODE
            hello = _greeting_of_node(hello, self._core.seat, is_for_node=asked_as_node)
        await send({"type": "websocket.accept", "subprotocol": wire.SUBPROTOCOL})
        talk = Conversation(self._core, scope, receive, send)
        if talk.principal.token:
            self._with_token.add(talk)
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
        address, clients = scope.get("client"), self._core.clients
        try:
            with clients.connected("socket", talk.principal, address, claims=talk.claims):
                await talk.run(hello)
        finally:
            self._with_token.discard(talk)
            talk.hang_up()
            if talk.is_cut or talk.outbox.is_full:
                scope["state"]["abort"]()

    async def _look(self) -> None:
        """End conversations with revoked tokens, also of clients that only listen."""
        while self._with_token and not self._core.closing.is_set():
            await asyncio.sleep(LOOK_S)
            for talk in [*self._with_token]:
                try:
                    await self._core.tokens.confirm(talk.principal)
                except Unauthenticated:
                    talk.shut_out()
                except MillstreamError:
                    break  # the store does not answer now: look again later


def _greeting(core: Core) -> bytes:
    instance: Instance = core.store.seen(STORE_KEY)
    return wire.encode_hello(
        wire.Hello(
            version=wire.VERSION,
            instance=instance.id,
            limits=core.store.limits,
            requests_max=core.settings.requests_in_flight_max,
            frame_bytes_max=core.settings.frame_bytes_max,
            release=__version__,
            abilities=wire.ABILITIES,
        )
    )


def _greeting_of_node(greeting: bytes, seat: ClusterRole, *, is_for_node: bool) -> bytes:
    """Return the greeting with the address of the leading node; a node gets more credit."""
    hello = replace(wire.decode_hello(greeting), leader="" if seat.leads else seat.leader_address)
    if is_for_node:
        hello = replace(hello, requests_max=NODE_REQUESTS_MAX)
    return wire.encode_hello(hello)


async def _refuse(send: Send, why: str) -> None:
    """Refuse a handshake without our subprotocol."""
    head = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "websocket.http.response.start", "status": 400, "headers": head})
    await send({"type": "websocket.http.response.body", "body": why.encode()})
