"""The HTTP client: plain requests to a server or a node, for threads and for the event loop.

`HttpClient` serves threads; it stands on the standard library. `LoopConnections` serves the event
loop and streams the body of a request while the answer already arrives, which a relay needs; it parses
answers with httptools, a package of the server's, and imports it only when it is used. Both verify TLS
by the context of the address and send its token. No proxy of the environment is ever asked, and no
redirect is followed: a token goes only to the address that the caller named.

Every failure of a connection is a `BrokenHttp`. A refusal by the server is an answer with a status;
`HttpAnswer.problem` turns it into the error that the server raised.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPMessage,
    HTTPResponse,
    HTTPSConnection,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millstream import errors
from millstream.errors import MillstreamError
from millstream.remote.address import SOCKET_PATH, Address

if TYPE_CHECKING:
    import httptools

READ_BYTES = 256 * 1024

IDLE_S = 2.0
"""How long the loop reuses an idle connection; servers close idle connections after 5 s."""

IDLE_MAX = 32
"""Idle connections to one address."""

Header = tuple[bytes, bytes]


class BrokenHttp(Exception):
    """The connection failed. `was_sent` says whether the server may have read the request."""

    def __init__(self, why: str, *, was_sent: bool) -> None:
        super().__init__(why)
        self.was_sent = was_sent


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete answer to a request."""

    status: int
    body: bytes
    headers: HTTPMessage

    @property
    def is_good(self) -> bool:
        """Whether the server did what the request asked for."""
        return 200 <= self.status < 300

    @property
    def excerpt(self) -> str:
        """The first characters of the body, for error messages."""
        return self.body[:200].decode(errors="replace")

    @property
    def detail(self) -> str:
        """The server's explanation of a refusal, or else its status."""
        return self._field("detail") or f"the server answered {self.status}"

    def problem(self) -> MillstreamError:
        """Return the error that the server raised; for an unknown title, a plain `MillstreamError`."""
        kind = getattr(errors, self._field("title"), None)
        if not (isinstance(kind, type) and issubclass(kind, MillstreamError)):
            kind = MillstreamError
        return kind(self.detail)

    def _field(self, name: str) -> str:
        try:
            return str(json.loads(self.body).get(name, ""))
        except (ValueError, AttributeError):
            return ""


class HttpClient:
    """A connection of one thread, opened by the first request and reused by the following ones."""

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        """`timeout_s` bounds the connecting, and every single read and write."""
        self._address = address
        self._prefix = address.target.removesuffix(SOCKET_PATH)
        if address.tls is None:
            self._connection = HTTPConnection(address.host, address.port, timeout=timeout_s)
        else:
            self._connection = HTTPSConnection(
                address.host, address.port, timeout=timeout_s, context=address.tls
            )

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Send a request and return the answer with any status. Raises `BrokenHttp`."""
        with self.stream(method, path, body, headers) as answer:
            data = answer.read()
        return HttpAnswer(answer.status, data, answer.headers)

    @contextmanager
    def stream(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Iterator[HTTPResponse]:
        """Send a request and yield its answer while the body still arrives. Raises `BrokenHttp`.

        A connection error inside the block becomes a `BrokenHttp` too, and ends the connection: the
        next request opens a new connection.
        """
        sent_body = body if body or method == "POST" else None
        sent_headers = {**self._address.headers(), **(headers or {})}
        was_sent = False
        try:
            self._connection.request(method, self._prefix + path, sent_body, sent_headers)
            was_sent = True
            yield self._connection.getresponse()
        except (OSError, HTTPException) as error:
            was_sent = was_sent or self._connection.sock is not None
            self.close()
            raise BrokenHttp(f"{type(error).__name__}: {error}", was_sent=was_sent) from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def ask(
    address: Address,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float,
) -> HttpAnswer:
    """Send one request over a connection of its own. Raises `BrokenHttp`."""
    with HttpClient(address, timeout_s=timeout_s) as connection:
        return connection.ask(method, path, body, headers)


class _AnswerParser:
    """The callbacks of httptools, and the answer as far as it has arrived."""

    def __init__(self, *, is_head: bool) -> None:
        from httptools import HttpResponseParser

        self.status = 0
        self.headers: list[Header] = []
        self.pieces: deque[bytes] = deque()
        self.has_head = False
        self.is_complete = False
        self.keeps_alive = False
        self._is_head = is_head
        self.parser: httptools.HttpResponseParser = HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        if self.status < 200:  # an interim answer: the final head follows
            self.headers.clear()
            return
        self.has_head = True
        self.keeps_alive = self.parser.should_keep_alive()
        if self._is_head:  # the answer to HEAD names the length of a body that never comes
            self.is_complete, self.keeps_alive = True, False

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = self.has_head

    @property
    def ends_with_connection(self) -> bool:
        """Whether the end of the connection is the end of the body."""
        names = {name for name, _ in self.headers}
        has_length = b"content-length" in names or b"transfer-encoding" in names
        return self.has_head and not self.is_complete and not has_length


class LoopExchange:
    """One request on a connection of the event loop, and its answer; both are streamed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._answer = _AnswerParser(is_head=False)
        self._is_chunked = False
        self._was_sent = False

    async def begin(self, method: str, target: bytes, headers: Iterable[Header]) -> None:
        """Send the head of a request."""
        self._answer = _AnswerParser(is_head=method == "HEAD")
        lines = [b"%s: %s\r\n" % header for header in headers]
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
            raise BrokenHttp(str(error), was_sent=True) from error

    async def head(self) -> tuple[int, list[Header]]:
        """Return the status and the headers of the answer."""
        while not self._answer.has_head:
            await self._read()
        return self._answer.status, self._answer.headers

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the answer as they arrive."""
        answer = self._answer
        while True:
            while answer.pieces:
                yield answer.pieces.popleft()
            if answer.is_complete:
                return
            await self._read()

    async def _read(self) -> None:
        from httptools import HttpParserError

        try:
            data = await self.reader.read(READ_BYTES)
            if data:
                self._answer.parser.feed_data(data)
            elif self._answer.ends_with_connection:
                self._answer.is_complete = True
            else:
                raise BrokenHttp("the server hung up", was_sent=self._was_sent)
        except OSError as error:
            raise BrokenHttp(str(error), was_sent=self._was_sent) from error
        except HttpParserError as error:
            raise BrokenHttp(f"no HTTP: {error}", was_sent=self._was_sent) from error

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can carry another request."""
        return self._answer.is_complete and self._answer.keeps_alive

    def cut(self) -> None:
        """Close the connection at once."""
        self.writer.transport.abort()


class LoopConnections:
    """Connections of one event loop to servers.

    An idle connection is reused for less time than servers keep it, so that no request goes out on a
    connection that the server is about to close.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[tuple[float, LoopExchange]]] = {}

    async def open(
        self, address: Address, *, timeout_s: float, fresh: bool = False
    ) -> LoopExchange:
        """Return an idle connection, or a new one. Raises `BrokenHttp` if none can be opened."""
        now_s = asyncio.get_running_loop().time()
        idle = self._idle.get(address.shown, [])
        while idle and not fresh:
            since_s, exchange = idle.pop()
            if now_s - since_s < IDLE_S and not exchange.reader.at_eof():
                return LoopExchange(exchange.reader, exchange.writer)
            exchange.cut()
        options: dict[str, Any] = {"limit": READ_BYTES}
        if address.tls is not None:
            options |= {"ssl": address.tls, "server_hostname": address.host}
        try:
            async with asyncio.timeout(timeout_s):
                streams = await asyncio.open_connection(address.host, address.port, **options)
        except (OSError, TimeoutError) as error:
            raise BrokenHttp(str(error) or "no answer", was_sent=False) from error
        return LoopExchange(*streams)

    def give_back(self, address: Address, exchange: LoopExchange) -> None:
        """Keep the connection of a finished exchange if another request can use it."""
        idle = self._idle.setdefault(address.shown, [])
        if not exchange.is_reusable or len(idle) >= IDLE_MAX:
            exchange.cut()
            return
        idle.append((asyncio.get_running_loop().time(), exchange))

    def close(self) -> None:
        """Close all idle connections."""
        for idle in self._idle.values():
            for _, exchange in idle:
                exchange.cut()
        self._idle.clear()
