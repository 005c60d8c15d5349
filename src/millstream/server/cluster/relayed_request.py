"""A passage: one HTTP request on its way to another server, and its answer on the way back.

Bodies and answers are streamed, so that staged parts and long answers take no memory here. The
request carries the client's own token or ticket.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from millstream.cluster.read_level import HOP_HEADER
from millstream.errors import MillstreamError
from millstream.remote.address import Address
from millstream.remote.http import Header, LoopExchange
from millstream.server.cluster.role import AGAIN_S
from millstream.server.problems import respond

SAFE = ("GET", "HEAD")
"""Methods without side effects: a request may be repeated."""

_DROPPED = frozenset(
    (
        *(b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding"),
        *(b"upgrade", b"expect", b"authorization", b"origin", b"content-length"),
        *(b"proxy-connection", b"proxy-authorization", b"x-request-id", HOP_HEADER.encode()),
    )
)
"""Headers of a single connection, and headers that this node has checked already."""

_DROPPED_OF_ANSWERS = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"trailer", b"date", b"x-request-id")
)


class Passage:
    """A request on its way to another server."""

    def __init__(
        self, address: Address, exchange: LoopExchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.address, self.exchange = address, exchange
        self.scope, self.receive, self.send = scope, receive, send
        self.method: str = scope["method"]
        self.is_answered = False
        """Whether the answer has started."""
        self.has_left = False
        """Whether the client disconnected, or its body was not sent completely."""

    async def run(self) -> None:
        """Send the request, and stream the answer back."""
        self.has_left = True  # until the complete answer has passed
        await self.exchange.begin(self.method, _target(self.scope), _head(self.scope, self.address))
        sending = asyncio.ensure_future(self._send_body())
        answering = asyncio.ensure_future(self._answer())
        try:
            await asyncio.wait([sending, answering], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and (error := sending.exception()) is not None:
                # The server may have refused the body, and explained why, before it hung up.
                done, _ = await asyncio.wait([answering], timeout=AGAIN_S)
                if not done:
                    raise error
            if not answering.done():
                return  # the client has disconnected
            await answering
            self.has_left = False
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    async def _send_body(self) -> None:
        """Send the body, then wait for the client to disconnect."""
        has_body = _has_body(self.scope)
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return
            if has_body:
                is_last = not message.get("more_body", False)
                await self.exchange.send(message.get("body", b""), is_last=is_last)
                has_body = not is_last

    async def _answer(self) -> None:
        status, headers = await self.exchange.head()
        self.is_answered = True
        passed = [header for header in headers if header[0] not in _DROPPED_OF_ANSWERS]
        await self.send({"type": "http.response.start", "status": status, "headers": passed})
        async for piece in self.exchange.body():
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        await self.send({"type": "http.response.body", "body": b""})


def _target(scope: Scope) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path.partition(b"?")[0] + (b"?" + query if query else b"")


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _head(scope: Scope, address: Address) -> list[Header]:
    received: list[Header] = scope["headers"]
    sent = [
        header
        for header in received
        if header[0] not in _DROPPED and not header[0].startswith(b"sec-fetch-")
    ]
    sent.append((b"host", address.host_header.encode()))
    sent += [(name.lower().encode(), text.encode()) for name, text in address.headers().items()]
    sent.append((b"x-request-id", scope["state"]["request_id"].encode()))
    lengths = [header for header in received if header[0] == b"content-length"]
    if lengths:
        sent += lengths[:1]
    elif _has_body(scope):
        sent.append((b"transfer-encoding", b"chunked"))
    return sent


async def refuse(error: MillstreamError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with an error."""
    response: Any = respond(error)
    await response(scope, receive, send)
