"""A raw WebSocket client: as little work per frame as Python allows, so that servers are measured.

It reads unmasked frames of servers, whole ones, and sends text frames with a mask of zeros. It
checks nothing that a server of ours is not known to do.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
_NO_MASK = bytes(4)
_KEY = "bWlsbHN0cmVhbS1iZW5jaA=="

OnText = Callable[[bytes], None]


class RawSocket(asyncio.Protocol):
    """One connection. `on_text` gets the payload of each text frame, as it comes."""

    def __init__(self, host: str, target: str, on_text: OnText) -> None:
        self._head = (
            f"GET {target} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {_KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
        self._on_text = on_text
        self._buffer = b""
        self._is_open = False
        self.transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: Any) -> None:
        """Ask to become a WebSocket."""
        self.transport = transport
        transport.write(self._head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Signal the end of the connection."""
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("the connection was lost"))
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take frames apart."""
        buffer = self._buffer + data if self._buffer else data
        at = 0
        if not self._is_open:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = buffer
                return
            if not buffer.startswith(b"HTTP/1.1 101"):
                self.opened.set_exception(ConnectionError(buffer[:300].decode("latin-1")))
                self.abort()
                return
            self._is_open, at = True, end + 4
            self.opened.set_result(None)
        self._buffer = buffer[self._frames(buffer, at) :]

    def _frames(self, buffer: bytes, at: int) -> int:
        """Hand over whole frames; answers where the first begins that is not whole."""
        size = len(buffer)
        while size - at >= 2:
            length = buffer[at + 1]
            start = at + 2
            if length == 126:
                start = at + 4
                if size < start:
                    break
                length = int.from_bytes(buffer[at + 2 : start], "big")
            elif length == 127:
                start = at + 10
                if size < start:
                    break
                length = int.from_bytes(buffer[at + 2 : start], "big")
            if size < start + length:
                break
            kind, payload = buffer[at] & 15, buffer[start : start + length]
            if kind == TEXT:
                self._on_text(payload)
            elif kind == PING:
                self._write(PONG, payload)
            elif kind == CLOSE:
                self.abort()
            at = start + length
        return at

    def send(self, text: bytes) -> None:
        """Send a text frame."""
        self._write(TEXT, text)

    def _write(self, kind: int, payload: bytes) -> None:
        length = len(payload)
        if length < 126:
            head = bytes((128 | kind, 128 | length))
        elif length < 65_536:
            head = struct.pack(">BBH", 128 | kind, 254, length)
        else:
            head = struct.pack(">BBQ", 128 | kind, 255, length)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(head + _NO_MASK + payload)

    def abort(self) -> None:
        """Cut the connection, without a word."""
        if self.transport is not None:
            self.transport.abort()


async def dial(address: tuple[str, int], target: str, on_text: OnText) -> RawSocket:
    """An open WebSocket."""
    loop = asyncio.get_running_loop()
    host, port = address
    _, made = await loop.create_connection(
        lambda: RawSocket(f"{host}:{port}", target, on_text), host, port
    )
    await made.opened
    return made
