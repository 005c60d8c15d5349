"""Upstream: one HTTP/1.1 exchange with another node, its body and its answer streamed.

Connections are kept for a moment and used again: for less time than a server keeps idle ones, so that
none is used which the other side is about to close.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterable

import httptools

from millstream.remote.address import Address

READ_BYTES = 256 * 1024

IDLE_S = 2.0
"""How long an idle connection is used again; servers keep them for 5 s."""

IDLE_MAX = 32

Header = tuple[bytes, bytes]


class Broken(Exception):
    """The connection failed. `was_sent` says whether the other side may have read the request."""

    def __init__(self, why: str, *, was_sent: bool) -> None:
        super().__init__(why)
        self.was_sent = was_sent


class _UpstreamAnswer:
    """What the parser tells of an answer."""

    def __init__(self, *, is_head: bool) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self.pieces: deque[bytes] = deque()
        self.has_head = False
        self.is_complete = False
        self.keeps_alive = False
        self._is_head = is_head
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        if self.status < 200:  # another head follows
            self.headers.clear()
            return
        self.has_head = True
        self.keeps_alive = self.parser.should_keep_alive()
        if self._is_head:  # its answer names the length of a body that does not come
            self.is_complete, self.keeps_alive = True, False

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = self.has_head


class UpstreamCall:
    """One request on a connection, and its answer."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_used: bool
    ) -> None:
        self.reader, self.writer = reader, writer
        self.is_used = is_used
        """Whether the connection carried a request before."""
        self._answer = _UpstreamAnswer(is_head=False)
        self._is_chunked = False
        self._was_sent = False

    async def begin(self, method: str, target: bytes, headers: Iterable[Header]) -> None:
        """Send the head of a request."""
        self._answer = _UpstreamAnswer(is_head=method == "HEAD")
        lines = [b"%s: %s\r\n" % one for one in headers]
        self._is_chunked = any(name == b"transfer-encoding" for name, _ in headers)
        head = b"%s %s HTTP/1.1\r\n%s\r\n" % (method.encode(), target, b"".join(lines))
        await self._write(head)

    async def send(self, piece: bytes, *, is_last: bool) -> None:
        """Send a piece of the body."""
        if not self._is_chunked:
            await self._write(piece)
            return
        chunk = b"%x\r\n%s\r\n" % (len(piece), piece) if piece else b""
        await self._write(chunk + (b"0\r\n\r\n" if is_last else b""))

    async def _write(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._was_sent = True
            self.writer.write(data)
            await self.writer.drain()
        except OSError as error:
            raise Broken(str(error), was_sent=True) from error

    async def head(self) -> tuple[int, list[Header]]:
        """The status and the headers of the answer."""
        while not self._answer.has_head:
            await self._read()
        return self._answer.status, self._answer.headers

    async def body(self) -> AsyncIterator[bytes]:
        """The pieces of the answer, as they come."""
        answer = self._answer
        while True:
            while answer.pieces:
                yield answer.pieces.popleft()
            if answer.is_complete:
                return
            await self._read()

    async def _read(self) -> None:
        try:
            data = await self.reader.read(READ_BYTES)
            if not data:
                answer = self._answer
                if answer.has_head and not answer.is_complete and _is_endless(answer.headers):
                    answer.is_complete = True  # such an answer ends with its connection
                    return
                raise Broken("the other node hung up", was_sent=self._was_sent)
            self._answer.parser.feed_data(data)
        except OSError as error:
            raise Broken(str(error), was_sent=self._was_sent) from error
        except httptools.HttpParserError as error:
            raise Broken(f"no HTTP: {error}", was_sent=self._was_sent) from error

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can carry another request."""
        return self._answer.is_complete and self._answer.keeps_alive

    def cut(self) -> None:
        """Let go of the connection."""
        self.writer.transport.abort()


def _is_endless(headers: list[Header]) -> bool:
    names = {name for name, _ in headers}
    return b"content-length" not in names and b"transfer-encoding" not in names


class Upstream:
    """Connections to other nodes; belongs to one event loop."""

    def __init__(self) -> None:
        self._idle: dict[str, list[tuple[float, UpstreamCall]]] = {}

    async def open(
        self, address: Address, *, timeout_s: float, fresh: bool = False
    ) -> UpstreamCall:
        """A connection, an idle one if there is such. Raises `Broken` if there is no way."""
        now_s = asyncio.get_running_loop().time()
        idle = self._idle.get(address.shown, [])
        while idle and not fresh:
            since_s, found = idle.pop()
            if now_s - since_s < IDLE_S and not found.reader.at_eof():
                return UpstreamCall(found.reader, found.writer, is_used=True)
            found.cut()
        tls: ssl.SSLContext | None = address.tls
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(
                    address.host,
                    address.port,
                    ssl=tls,
                    server_hostname=None if tls is None else address.host,
                    limit=READ_BYTES,
                )
        except (OSError, TimeoutError) as error:
            raise Broken(str(error) or "no answer", was_sent=False) from error
        return UpstreamCall(reader, writer, is_used=False)

    def give_back(self, address: Address, exchange: UpstreamCall) -> None:
        """An exchange is over: keep its connection, if it can be used again."""
        idle = self._idle.setdefault(address.shown, [])
        if not exchange.is_reusable or len(idle) >= IDLE_MAX:
            exchange.cut()
            return
        idle.append((asyncio.get_running_loop().time(), exchange))

    def close(self) -> None:
        """Let go of all."""
        for idle in self._idle.values():
            for _, exchange in idle:
                exchange.cut()
        self._idle.clear()
