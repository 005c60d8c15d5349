"""The relay: requests over HTTP that this node may not answer, handed on to the leading node.

Bodies and answers are streamed through, so that staged parts and long answers need no memory here.
The request carries the client's own token or ticket. It goes one hop and no further: a node that is
handed a request and does not lead refuses it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from millstream.cluster.read_level import HOP_HEADER
from millstream.errors import MillstreamError, OutcomeUnknown
from millstream.remote.address import Address, parse_address
from millstream.remote.http import BrokenHttp, Header, LoopConnections, LoopExchange
from millstream.server.cluster.role import AGAIN_S, FORWARD_S, Asker, Seat
from millstream.server.problems import respond

CONNECT_S = 2.0

SAFE = ("GET", "HEAD")
"""Methods that change nothing: they may be asked again."""

OWN = frozenset({"health", "metrics", "live", "cluster", "openapi.json", "docs", "web", "demo", ""})
"""The first parts of paths that are about this node; or about nothing that another would know."""

_DROPPED = frozenset(
    (
        *(b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding"),
        *(b"upgrade", b"expect", b"authorization", b"origin", b"content-length"),
        *(b"proxy-connection", b"proxy-authorization", b"x-request-id", HOP_HEADER.encode()),
    )
)
"""Headers that are about one connection; and those by which this node has already judged."""

_DROPPED_OF_ANSWERS = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"trailer", b"date", b"x-request-id")
)


def is_own(scope: Scope) -> bool:
    """Whether a request is about this node itself, or listens to a room here."""
    sent: bytes = scope.get("raw_path") or scope["path"].encode()
    first = sent[1:].partition(b"/")[0].decode("latin-1")
    if first == "rooms":
        return scope["method"] in SAFE and sent.count(b"/") == 2
    return first in OWN or first.startswith("millstream.")


class Relay:
    """Hands requests on; belongs to one event loop."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._connections = LoopConnections()

    def takes(self, scope: Scope, asker: Asker) -> bool:
        """Whether the leading node has to answer a request."""
        if scope["type"] != "http" or self._seat.leads or is_own(scope):
            return False
        return not (scope["method"] in SAFE and self._seat.reads(asker.read_level))

    async def hand_on(self, scope: Scope, receive: Receive, send: Send, asker: Asker) -> bool:
        """Have the leading node answer; False if this node leads by now and must answer itself."""
        seat, loop = self._seat, asyncio.get_running_loop()
        until_s = loop.time() + FORWARD_S
        while not seat.leads:
            where = seat.leader_address
            if asker.is_handed_on or (not where and loop.time() >= until_s):
                await _refuse(seat.not_leader(), scope, receive, send)
                return True
            if where:
                address = parse_address(
                    where, token=asker.credential, ca=seat.ca, is_handed_on=True
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
        """Stream a request and its answer; what broke before its answer is told apart.

        False if another node leads by now, and the request may be asked again there.
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
                raise  # the client sees an answer that ends too early
            unknown = OutcomeUnknown(
                f"the leading node {passage.address.shown} was lost while it carried this out "
                f"({error}): it may have been done, or not. Look before you repeat it"
            )
            found = self._seat.not_leader() if passage.method in SAFE else unknown
            await _refuse(found, passage.scope, passage.receive, passage.send)
        finally:
            if passage.has_left:
                passage.exchange.cut()
            else:
                self._connections.give_back(passage.address, passage.exchange)
        return True

    async def _run(self, passage: _Passage) -> None:
        """Run a passage; a leader that was replaced before it answered may never answer."""
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
        """Let go of all connections."""
        self._connections.close()


class _Replaced(BrokenHttp):
    """Another node has begun to lead before the asked one has answered."""


class _Passage:
    """One request on its way through."""

    def __init__(
        self, address: Address, exchange: LoopExchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.address, self.exchange = address, exchange
        self.scope, self.receive, self.send = scope, receive, send
        self.method: str = scope["method"]
        self.is_answered = False
        """Whether the answer has begun."""
        self.has_left = False
        """Whether the client has gone, or its body was not sent to the end."""

    async def run(self) -> None:
        """Send the request, and give back the answer as it comes."""
        self.has_left = True  # until all of it has passed
        await self.exchange.begin(self.method, _target(self.scope), _head(self.scope, self.address))
        sending = asyncio.ensure_future(self._send_body())
        answering = asyncio.ensure_future(self._answer())
        try:
            await asyncio.wait([sending, answering], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and (error := sending.exception()) is not None:
                # The leading node may have refused, and said why, before it hung up.
                done, _ = await asyncio.wait([answering], timeout=AGAIN_S)
                if not done:
                    raise error
            if not answering.done():
                return  # the client has left
            await answering
            self.has_left = False
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    async def _send_body(self) -> None:
        """Until the client leaves: a body may be followed by nothing else."""
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
        kept = [one for one in headers if one[0] not in _DROPPED_OF_ANSWERS]
        await self.send({"type": "http.response.start", "status": status, "headers": kept})
        async for piece in self.exchange.body():
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        await self.send({"type": "http.response.body", "body": b""})


def _target(scope: Scope) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path.partition(b"?")[0] + (b"?" + query if query else b"")


def _has_body(scope: Scope) -> bool:
    given = dict(scope["headers"])
    return b"transfer-encoding" in given or given.get(b"content-length", b"0") != b"0"


def _head(scope: Scope, address: Address) -> list[Header]:
    given: list[Header] = scope["headers"]
    kept = [one for one in given if one[0] not in _DROPPED and not one[0].startswith(b"sec-fetch-")]
    kept.append((b"host", address.host_header.encode()))
    kept += [(name.lower().encode(), text.encode()) for name, text in address.headers().items()]
    kept.append((b"x-request-id", scope["state"]["request_id"].encode()))
    lengths = [one for one in given if one[0] == b"content-length"]
    if lengths:
        kept += lengths[:1]
    elif _has_body(scope):
        kept.append((b"transfer-encoding", b"chunked"))
    return kept


async def _refuse(error: MillstreamError, scope: Scope, receive: Receive, send: Send) -> None:
    response: Any = respond(error)
    await response(scope, receive, send)
