"""The relay: HTTP requests that this node may not answer are passed to the leader.

Bodies and answers are streamed, so that staged parts and long answers take no memory here. The
request carries the client's own token or ticket. It is passed on once only: a node that gets such a
request and does not lead refuses it.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from millstream.errors import OutcomeUnknown
from millstream.remote.address import Address, parse_address
from millstream.remote.http import BrokenHttp, LoopConnections, LoopExchange
from millstream.server.cluster.relayed_request import SAFE, Passage, refuse
from millstream.server.cluster.role import AGAIN_S, FORWARD_S, Asker, ClusterRole

CONNECT_S = 2.0

OWN = frozenset(
    (
        *("health", "metrics", "live", "cluster", "openapi.json", "docs", "web", "demo", ""),
        *("millstream.js", "millstream.global.js", "millstream.d.ts"),
    )
)
"""First path segments of requests that every node answers itself."""


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
                await refuse(seat.not_leader(), scope, receive, send)
                return True
            if leader:
                address = parse_address(
                    leader, token=asker.credential, ca=seat.ca, is_handed_on=True
                )
                exchange = await self._open(address)
                if exchange is not None:
                    seat.handed_on += 1
                    if await self._carry(Passage(address, exchange, scope, receive, send)):
                        return True
                if loop.time() >= until_s:
                    await refuse(seat.not_leader(), scope, receive, send)
                    return True
            await seat.changed(AGAIN_S)
            seat.look()
        return False

    async def _open(self, address: Address) -> LoopExchange | None:
        try:
            return await self._connections.open(address, timeout_s=CONNECT_S)
        except BrokenHttp:
            return None

    async def _carry(self, passage: Passage) -> bool:
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
            await refuse(problem, passage.scope, passage.receive, passage.send)
        finally:
            if passage.has_left:
                passage.exchange.cut()
            else:
                self._connections.give_back(passage.address, passage.exchange)
        return True

    async def _run(self, passage: Passage) -> None:
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
