"""A small protocol of lines, spoken by a real server beside HTTP: the example of a gateway.

The first line is the credential: `TOKEN ms_…`, or `HELLO` without one. Then `APPEND log text`,
`READ log offset`, `WAIT log offset` and `QUIT`, each answered by a line: `OK …` or `ERR name text`.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from millstream.aio.log import Log
from millstream.errors import InvalidInput, MillstreamError, NotFound, TooLarge, Unauthenticated
from millstream.log.commands import WaitForOffset
from millstream.server.gateways.client import GatewayClient, GatewayEntrance
from millstream.server.gateways.connection import Gateway, GatewayConnection
from millstream.server.serving import Serving

LINE_BYTES_MAX = 64 * 1024
LINES_MAX = 16
"""Lines that wait for the answers before them; then the client is not read."""

SOON_S = 60.0


class LineCredentials:
    """Reads the credential of a connection from its first line."""

    async def read(self, request: bytes) -> str | None:
        verb, _, token = request.decode("utf-8", "replace").strip().partition(" ")
        if verb == "HELLO":
            return None
        if verb != "TOKEN" or not token:
            raise Unauthenticated
        return token


class LineConnection(GatewayConnection):
    """One client that speaks lines; its lines are answered one after the other."""

    def __init__(self, entrance: GatewayEntrance[bytes]) -> None:
        super().__init__(entrance)
        self._unfinished = b""
        self._lines: deque[bytes] = deque()
        self._is_working = False

    def received(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > LINE_BYTES_MAX:
            self.refuse(TooLarge(f"a line has up to {LINE_BYTES_MAX:,} bytes"))
            self.transport.close()
            return
        self._lines += lines
        if len(self._lines) > LINES_MAX:
            self.transport.pause_reading()
        if self._lines and not self._is_working:
            self._is_working = True
            self.begin(self._work())

    def refuse(self, error: MillstreamError) -> None:
        self.write(f"ERR {type(error).__name__} {error.message}\n".encode())

    async def _work(self) -> None:
        while self._lines and not self.transport.is_closing():
            line = self._lines.popleft()
            try:
                self.write(await self._answer(line) + b"\n")
            except MillstreamError as error:
                self.refuse(error)
                if self.client is None or isinstance(error, Unauthenticated):
                    self.transport.close()
        self._is_working = False
        if not self.transport.is_closing():
            self.transport.resume_reading()

    async def _answer(self, line: bytes) -> bytes:
        if self.client is None:
            await self.enter(line)
            return b"OK"
        verb, *words = line.decode("utf-8", "replace").strip().split(" ", 2)
        if verb == "QUIT":
            self.write(b"BYE\n")
            self.transport.close()
            return b""
        if len(words) != 2:
            raise InvalidInput("a line is VERB LOG TEXT")
        return await _done(self.client, verb, *words)


async def _done(client: GatewayClient, verb: str, name: str, text: str) -> bytes:
    log = Log(client, name)
    if verb == "APPEND":
        return b"OK %d" % await log.append(text.encode())
    if verb == "WAIT":
        return b"OK %s" % str(await client.execute(WaitForOffset(name, int(text), 60_000))).encode()
    if verb != "READ":
        raise InvalidInput(f"no verb {verb!r}")
    record = await log.get(int(text))
    if record is None:
        raise NotFound(f"no record {text} in {name}")
    return b"OK " + bytes(record.value)


GATEWAY = Gateway("line", LineCredentials(), LineConnection)


class LineClient:
    """A client of the protocol, for tests."""

    def __init__(self, raw: socket.socket, lines: BinaryIO) -> None:
        self.raw = raw
        self._lines = lines

    def send(self, line: str) -> None:
        self.raw.sendall(line.encode() + b"\n")

    def answer(self) -> str:
        """The next line; empty once the server has hung up."""
        return self._lines.readline().decode().rstrip("\n")

    def ask(self, line: str) -> str:
        self.send(line)
        return self.answer()


@contextmanager
def line_client(server: Serving, first: str = "HELLO") -> Iterator[LineClient]:
    """A client that has sent its first line."""
    port = server.gateway_ports["line"]
    with (
        socket.create_connection(("127.0.0.1", port), SOON_S) as raw,
        raw.makefile("rb") as lines,
    ):
        client = LineClient(raw, lines)
        if first:
            client.send(first)
        yield client


@contextmanager
def entered(server: Serving, token: str = "") -> Iterator[LineClient]:
    """A client that was let in."""
    with line_client(server, f"TOKEN {token}" if token else "HELLO") as client:
        assert client.answer() == "OK"
        yield client


def options(**more: Any) -> dict[str, Any]:
    """Options of a server that also speaks lines."""
    return {"gateways": [GATEWAY], "durability": "relaxed", **more}
