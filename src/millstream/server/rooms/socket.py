"""A room over a WebSocket: JSON texts both ways.

What is pushed is written straight to the connection, by the feed: the task of a connection only
reads. Frames of one client are stored in the order in which they came.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.types import Message, Receive, Scope, Send

from millstream.errors import InvalidInput, MillstreamError, Overloaded, TooLarge, Unauthenticated
from millstream.rooms.model import RoomMessage
from millstream.server.auth.access import Need
from millstream.server.http.connection import SocketConnection
from millstream.server.journal import note_failure
from millstream.server.problems import InternalError, Malformed, respond
from millstream.server.rooms.entering import parse_query, room_of_path
from millstream.server.rooms.frames import PONG, Heard, decode_heard, on_socket
from millstream.server.rooms.hub import POLICY, Hub
from millstream.server.rooms.listener import RoomListener

PATH = "/rooms/{room:path}"

REFUSED_BINARY = 1003
REASON_BYTES_MAX = 123
"""Of a close frame's reason, by RFC 6455."""

FRAME_BYTES = 1024 * 1024
"""A client's frame has up to so many bytes, or as many as two of the room's largest messages."""

CLOSE_S = 1.0
"""How long a close frame may wait behind messages that the client does not read."""

SENDING_MAX = 64
"""Frames of one client that are being stored at once; the next one is read when one is."""


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
            await _refuse(send, error)
            return
        listener = entered.listener
        assert isinstance(listener, SocketListener)
        try:
            await send({"type": "websocket.accept"})
            listener.begin(scope["state"]["socket"], send)
            hub.begin_listening(entered)
            await Conversing(hub, listener, receive).run()
        finally:
            scope["state"]["socket"].on_flow = None
            hub.leave(listener)


class Conversing:
    """What one client sends, and its limits."""

    def __init__(self, hub: Hub, listener: SocketListener, receive: Receive) -> None:
        self._hub = hub
        self._listener = listener
        self._receive = receive
        self._allowance = 0.0
        self._counted_s: float | None = None
        self._storing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Read until the connection ends."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:
                self._listener.close(
                    REFUSED_BINARY, "frames of a room are text, this one is binary"
                )
                continue
            number: int | None = None
            try:
                heard = self._decode(text)
                if heard.ping is not UNSET:
                    self._listener.tell(PONG)
                if heard.send is not UNSET:
                    number = None if heard.n is UNSET else heard.n
                    await self._send(heard, number)
            except Unauthenticated:
                self._listener.close(POLICY, "the token has expired, or was revoked")
            except MillstreamError as error:
                self._listener.refuse(error, number)

    def _decode(self, text: str) -> Heard:
        most = max(FRAME_BYTES, 2 * self._listener.room.settings.message_bytes_max)
        if len(text) > most:
            raise TooLarge(
                f"a frame of {len(text):,} characters; the limit is {most:,}",
                size=len(text),
                limit=most,
            )
        try:
            return decode_heard(text)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"no frame of a room: {error}") from error
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Malformed(f"a frame is a JSON object: {error}") from error

    async def _send(self, heard: Heard, number: int | None) -> None:
        """Store what a frame brings; conflated types with the next tick, the others at once."""
        listener, room = self._listener, self._listener.room
        assert heard.send is not UNSET
        principal = await self._hub.core.tokens.confirm(listener.principal)
        principal.require(Need("room", "write", room.name))
        messages = [one.message() for one in heard.send]
        if not messages:
            raise InvalidInput("there is no message to send")
        self._hub.core.quota.spend(listener.principal)
        self._spend(len(messages))
        conflated = room.settings.conflated_types
        at_once = [one for one in messages if one.type not in conflated]
        later = [one for one in messages if one.type in conflated]
        if at_once:
            await self._store(at_once, number)
            number = None
        if later:
            room.conflate(listener, later, number)

    async def _store(self, messages: list[RoomMessage], number: int | None) -> None:
        while len(self._storing) >= SENDING_MAX:
            await asyncio.wait(self._storing, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.get_running_loop().create_task(self._store_now(messages, number))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store_now(self, messages: list[RoomMessage], number: int | None) -> None:
        listener = self._listener
        try:
            await listener.room.send_for(listener, messages, number)
        except MillstreamError as error:
            listener.refuse(error, number)
        except Exception as error:
            note_failure(error, room=listener.room.name)
            why = InternalError("the server failed at this frame; its log says where")
            listener.refuse(why, number)

    def _spend(self, messages: int) -> None:
        """Refuse more messages than the room allows a connection per second."""
        rate = self._listener.room.settings.messages_per_second
        if not rate:
            return
        most, now_s = max(1.0, rate), self._hub.core.store.clock.seconds()
        if self._counted_s is None:
            self._allowance = most
        else:
            self._allowance = min(most, self._allowance + (now_s - self._counted_s) * rate)
        self._counted_s = now_s
        if messages > self._allowance:
            raise Overloaded(
                f"{messages} messages, and this connection may send {rate:g} per second; "
                "wait, or send less (the room's setting messages_per_second)",
                messages_per_second=rate,
            )
        self._allowance -= messages


async def _refuse(send: Send, error: MillstreamError) -> None:
    """Answer a handshake that lets no one in, as a request would be answered."""
    response = respond(error)
    start: dict[str, Any] = {
        "type": "websocket.http.response.start",
        "status": response.status_code,
        "headers": response.raw_headers,
    }
    await send(start)
    await send({"type": "websocket.http.response.body", "body": response.body})
