"""A listener over a WebSocket: messages are written directly to the connection."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Send

from millstream.server.listen.websocket import SocketConnection
from millstream.server.rooms.frames import fragment, on_socket
from millstream.server.rooms.listener import RoomListener
from millstream.server.rooms.pushed_messages import PushedText

REASON_BYTES_MAX = 123
"""Largest reason of a close frame, by RFC 6455."""

CLOSE_S = 1.0
"""How long a close frame may wait behind messages that the client does not read."""


class SocketListener(RoomListener):
    """A listener over a WebSocket."""

    __slots__ = ("_closing", "_send", "_socket", "flowing")

    def begin(self, socket: SocketConnection, send: Send) -> None:
        """Use an accepted connection."""
        self._socket = socket
        self._send = send
        self._closing: asyncio.Task[None] | None = None
        socket.on_flow = self._flow
        self.is_ready = socket.writable.is_set()
        self.flowing = asyncio.Event()
        """Set while the client reads; while it does not, its frames are not handled
        (back-pressure)."""
        if self.is_ready:
            self.flowing.set()

    def push(self, text: PushedText) -> None:
        """Write a text with messages; the frame is shared by the sockets."""
        self._socket.write(text.frame)

    def tell(self, text: bytes, offset: int | None = None) -> None:
        """Write a frame, after the long frame that is being written."""
        if self.deferred_frames is None:
            self._socket.write(on_socket(text))
        else:
            self.deferred_frames.append((text, offset))

    def tell_part(self, text: bytes, offset: int, *, is_first: bool, is_last: bool) -> None:
        """Write a fragment of a frame."""
        self._socket.write(fragment(text, is_first=is_first, is_last=is_last))

    def close(self, code: int, reason: str) -> None:
        """End the connection. Unread messages are not waited for longer than `CLOSE_S`."""
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
            self.flowing.set()
            self.resume()
        else:
            self.flowing.clear()
            self.pause()
