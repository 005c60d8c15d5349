"""The relay: HTTP requests that this node may not answer are passed to the leader.

Bodies and answers are streamed, so that staged parts and long answers take no memory here. The
request carries the client's own token or ticket. It is passed on once only: a node that gets such a
request and does not lead refuses it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from millstream.cluster.read_level import HOP_HEADER
from millstream.errors import MillstreamError, OutcomeUnknown
from millstream.remote.address import Address, parse_address
from millstream.remote.http import BrokenHttp, Header, LoopConnections, LoopExchange
from millstream.server.cluster.role import AGAIN_S, FORWARD_S, Asker, ClusterRole
from millstream.server.problems import respond

CONNECT_S = 2.0

SAFE = ("GET", "HEAD")
"""Methods without side effects: a request may be repeated."""

OWN = frozenset(
    (
        *("health", "metrics", "live", "cluster", "openapi.json", "docs", "web", "demo", ""),
        *("millstream.js", "millstream.global.js", "millstream.d.ts"),
    )
)
"""First path segments of requests that every node answers itself."""

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


def is_own(scope: Scope) -> bool:
    """Whether this node answers a request itself: about the node, or a listener of a room."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    first = path[1:].partition(b"/")[0].decode("latin-1")
    if first == "rooms":
        return scope["method"] in SAFE and path.count(b"/") == 2
    return first in OWN or first.startswith("millstream.")


class Relay:
    """Passes requests to the leader. Belongs to one event loop."""

    def __init__(self, seat: ClusterRole) -> None:
        self._seat = seat
        self._connections = LoopConnections()

    def takes(self, scope: Scope, asker: Asker) -> bool:
        """Whether the leader must answer a request."""
        if scope["type"] != "http" or self._seat.leads or is_own(scope):
            return False
        return not (scope["method"] in SAFE and self._seat.reads(asker.read_level))

    async def hand_on(self, scope: Scope, receive: Receive, send: Send, asker: Asker) -> bool:
        """Let the leader answer; False if this node leads by now and must answer itself."""
        seat, loop = self._seat, asyncio.get_running_loop()
        until_s = loop.time() + FORWARD_S
        while not seat.leads:
            leader = seat.leader_address
            if asker.is_handed_on or (not leader and loop.time() >= until_s):
                await _refuse(seat.not_leader(), scope, receive, send)
                return True
            if leader:
                address = parse_address(
                    leader, token=asker.credential, ca=seat.ca, is_handed_on=True
                )
                exchange = await self._open(address)
                if exchange is not None:
                    seat.handed_on += 1
                    if await self._carry(_Passage(address, exchange, scope, receive, send)):
                        return True
                if loop.time() >= until_s:
                    await _refuse(seat.not_leader(), scope, receive, send)
                    return True
            await seat.changed(AGAIN_S)
            seat.look()
        return False

    async def _open(self, address: Address) -> LoopExchange | None:
        try:
            return await self._connections.open(address, timeout_s=CONNECT_S)
        except BrokenHttp:
            return None

    async def _carry(self, passage: _Passage) -> bool:
        """Stream a request and its answer.

        Returns False if another node leads by now and the request may be sent there. If the
        connection breaks before the answer, a request without side effects is repeated; the outcome
        of another request is unknown, and the client is told so.
        """
        try:
            try:
                await self._run(passage)
            except _Replaced:
                if passage.method in SAFE:
                    return False
                raise
            except BrokenHttp as error:
                if not error.was_sent or (passage.method in SAFE and not passage.is_answered):
                    passage.exchange.cut()
                    passage.exchange = await self._connections.open(
                        passage.address, timeout_s=CONNECT_S, fresh=True
                    )
                    await self._run(passage)
                else:
                    raise
        except BrokenHttp as error:
            if passage.is_answered:
                raise  # the client sees a truncated answer
            unknown = OutcomeUnknown(
                f"the connection to the leader {passage.address.shown} was lost during this request "
                f"({error}): it may have been executed or not. Check before you repeat it"
            )
            problem = self._seat.not_leader() if passage.method in SAFE else unknown
            await _refuse(problem, passage.scope, passage.receive, passage.send)
        finally:
            if passage.has_left:
                passage.exchange.cut()
            else:
                self._connections.give_back(passage.address, passage.exchange)
        return True

    async def _run(self, passage: _Passage) -> None:
        """Stream a passage; stop if the leader is replaced before it answers, since it may never
        answer."""
        seat = self._seat
        running = asyncio.ensure_future(passage.run())
        try:
            while not running.done():
                change = asyncio.ensure_future(seat.changed(FORWARD_S))
                await asyncio.wait([running, change], return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                is_replaced = seat.leads or seat.leader_address not in ("", passage.address.shown)
                if is_replaced and not (running.done() or passage.is_answered):
                    raise _Replaced("another node leads now", was_sent=True)
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()


class _Replaced(BrokenHttp):
    """Another node leads before the former leader has answered."""


class _Passage:
    """A request on its way to the leader."""

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
                # The leader may have refused the body, and explained why, before it hung up.
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


async def _refuse(error: MillstreamError, scope: Scope, receive: Receive, send: Send) -> None:
    response: Any = respond(error)
    await response(scope, receive, send)
