"""A client of framed connections, as a test sees one: like the WebSocket of `talking`, byte by byte."""

from __future__ import annotations

import socket as sockets
from collections.abc import Iterator
from contextlib import contextmanager

from websockets.exceptions import ConnectionClosedError
from websockets.frames import Close

from millstream.server.serving import Serving
from millstream.wire import commands as wire
from millstream.wire import framing
from millstream.wire.framing import CLOSE, DATA, Unframer

SOON_S = 120.0


def request(server: Serving, *more: str, path: str = "/socket") -> bytes:
    """What a client sends to be upgraded."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "Connection: Upgrade",
        f"Upgrade: {framing.UPGRADE}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def read_head(raw: sockets.socket) -> tuple[bytes, bytes]:
    """An answer's head, and what came behind it."""
    found = b""
    while b"\r\n\r\n" not in found:
        data = raw.recv(65_536)
        assert data, found
        found += data
    head, _, rest = found.partition(b"\r\n\r\n")
    return head, rest


class FramedSocket:
    """One connection, upgraded."""

    subprotocol = wire.SUBPROTOCOL

    def __init__(self, raw: sockets.socket, rest: bytes) -> None:
        self.socket = raw
        self._unframer = Unframer(1 << 30)
        self._came = self._unframer.feed(rest)

    def send(self, data: bytes) -> None:
        """One frame of data."""
        try:
            self.socket.sendall(framing.frame(data))
        except ConnectionError as error:
            raise ConnectionClosedError(None, None) from error

    def frame(self) -> tuple[int, bytes]:
        """The next frame, of whatever kind."""
        while not self._came:
            try:
                data = self.socket.recv(65_536)
            except ConnectionError as error:
                raise ConnectionClosedError(None, None) from error
            if not data:
                raise ConnectionClosedError(None, None)
            self._came += self._unframer.feed(data)
        return self._came.pop(0)

    def recv(self, decode: bool | None = None) -> bytes:
        """The next frame of data; a close frame is raised, as `websockets` does."""
        while True:
            kind, data = self.frame()
            if kind == DATA:
                return data
            if kind == CLOSE:
                raise ConnectionClosedError(Close(*framing.read_close(data)), None)


@contextmanager
def framed(server: Serving, *more: str) -> Iterator[FramedSocket]:
    """A connection that was upgraded to frames."""
    with sockets.create_connection(("127.0.0.1", server.port), timeout=SOON_S) as raw:
        raw.sendall(request(server, *more))
        head, rest = read_head(raw)
        assert b" 101 " in head, head
        yield FramedSocket(raw, rest)
