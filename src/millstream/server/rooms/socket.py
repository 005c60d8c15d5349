"""A room over a WebSocket: JSON texts both ways.

What is pushed is written straight to the connection, by the feed. What the client sends is heard
straight from it (`conversing`).
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope, Send

from millstream.errors import MillstreamError
from millstream.server.http.websocket import SocketConnection
from millstream.server.problems import refuse_handshake
from millstream.server.rooms.conversing import Conversing
from millstream.server.rooms.entering import parse_query, room_of_path
from millstream.server.rooms.frames import on_socket
from millstream.server.rooms.hub import Hub
from millstream.server.rooms.listener import RoomListener

PATH = "/rooms/{room:path}"

REASON_BYTES_MAX = 123
"""Of a close frame's reason, by RFC 6455."""

CLOSE_S = 1.0
"""How long a close frame may wait behind messages that the client does not read."""


class SocketListener(RoomListener):
    """A listener at the other end of a WebSocket."""

    __slots__ = ("_closing", "_send", "_socket", "write")

    def begin(self, socket: SocketConnection, send: Send) -> None:
        """Use a connection that was accepted."""
        self._socket = socket
        self._send = send
        self._closing: asyncio.Task[None] | None = None
        self.write = socket.write  # type: ignore[method-assign, assignment]
        socket.on_flow = self._flow
        self.is_ready = socket.writable.is_set()

    def tell(self, text: bytes, offset: int | None = None) -> None:
        """Write a frame."""
        self._socket.write(on_socket(text))

    def close(self, code: int, reason: str) -> None:
        """End the connection; what it has not read yet is not waited for."""
        if self._closing is None and not self.is_gone:
            cut = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
            message = {"type": "websocket.close", "code": code, "reason": cut}
            self._closing = asyncio.get_running_loop().create_task(self._end(message))

    async def _end(self, message: Message) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._send(message)
        except Exception:
            self._socket.transport.abort()

    def _flow(self, flows: bool) -> None:
        if flows:
            self.resume()
        else:
            self.pause()


class RoomSocket:
    """What the route of a room's WebSockets does."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a client in, and read what it sends."""
        await receive()  # websocket.connect
        hub = self._hub
        try:
            name = room_of_path(scope["raw_path"])
            asked = parse_query(scope["query_string"].decode("latin-1"))
            principal = scope["state"]["principal"]
            entered = await hub.enter(principal, name, asked, SocketListener)
        except MillstreamError as error:
            await refuse_handshake(send, error)
            return
        listener = entered.listener
        assert isinstance(listener, SocketListener)
        try:
            await send({"type": "websocket.accept"})
            listener.begin(scope["state"]["socket"], send)
            hub.begin_listening(entered)
            await Conversing(hub, listener, scope["state"], receive).run()
        finally:
            scope["state"]["socket"].on_flow = None
            hub.leave(listener)
