"""Forwarding: commands that this node may not answer, asked of the leading node over its socket.

A forwarder serves one client, with the client's own token, so that the leading node checks it as its
own; or this node itself. It follows the leader. A command that was refused, or never sent, is asked
again of the next leader; one that may have been carried out is `OutcomeUnknown`, as everywhere.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from msgspec import Raw

from millstream.command import Command, Operation, is_repeatable
from millstream.embedded.loop.claim_loop import ClientTurns
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.errors import CannotOpen, NotLeader, OutcomeUnknown
from millstream.log.commands import GetBounds
from millstream.queue.commands import ClaimMessages
from millstream.remote.address import Address, parse_address
from millstream.remote.loop_client import LoopClient, LoopRequest, Patience
from millstream.remote.nodes import Nodes
from millstream.remote.repeats import Interrupted
from millstream.remote.results import result_of
from millstream.rooms.commands import Broadcast
from millstream.server.cluster.role import AGAIN_S, FORWARD_S, Seat
from millstream.store.store import Store
from millstream.wire import commands as wire

T = TypeVar("T")

CONNECT_S = 2.0
"""For one attempt to reach the leading node."""


class NodeRequest(LoopRequest):
    """A command of this node itself: it may be one that no client may ask for."""

    __slots__ = ()

    def encode(self, command: Command[Any]) -> Raw:
        """Without the check of what clients may ask."""
        return wire.encode_internal(command)


class Forwarder:
    """One way to whatever node leads; belongs to the event loop."""

    def __init__(self, seat: Seat, credential: str, *, is_node: bool = False) -> None:
        self._seat = seat
        self._credential = credential
        self._request = NodeRequest if is_node else LoopRequest
        self._client: LoopClient | None = None
        self._to = ""
        self._opening = asyncio.Lock()

    async def ask(self, command: Command[Any]) -> Raw:
        """The leading node's answer. Raises `NotLeader` if there is none, or this node leads now."""
        seat, loop = self._seat, asyncio.get_running_loop()
        until_s = loop.time() + FORWARD_S
        while True:
            try:
                client = await self._connected(until_s)
                found = await self._answer(client, command)
                seat.handed_on += 1
                return found
            except (CannotOpen, NotLeader, Interrupted):
                pass  # nothing was done
            except OutcomeUnknown:
                if not _may_be_asked_again(command):
                    raise
            if seat.leads or loop.time() >= until_s:
                raise seat.not_leader()
            await seat.changed(AGAIN_S)
            seat.look()

    async def _connected(self, until_s: float) -> LoopClient:
        """The client to the node that leads now, or will soon.

        Requests get it in the order in which they came, also if they came while no node led.
        """
        seat, loop = self._seat, asyncio.get_running_loop()
        async with self._opening:
            while True:
                try:
                    return await self._open()
                except (CannotOpen, NotLeader):
                    if seat.leads or loop.time() >= until_s:
                        raise
                await seat.changed(AGAIN_S)
                seat.look()

    async def _open(self) -> LoopClient:
        """The client to the node that leads now. Raises `NotLeader` if none is known."""
        where = self._seat.leader_address
        if not where:
            raise self._seat.not_leader()
        if self._client is None or self._to != where or not self._client.is_open:
            self.close()
            self._client = await LoopClient.open(
                Nodes([self._address(where)]), Patience(connect_timeout_s=CONNECT_S, retry_for_s=0)
            )
            self._to = where
        return self._client

    def _address(self, where: str) -> Address:
        return parse_address(where, token=self._credential, ca=self._seat.ca, is_handed_on=True)

    async def _answer(self, client: LoopClient, command: Command[Any]) -> Raw:
        """Ask; but a leader that was replaced meanwhile may never answer."""
        request = self._request(command)
        client.ask(request)
        while not request.future.done():
            change = asyncio.ensure_future(self._seat.changed(FORWARD_S))
            parts: list[asyncio.Future[Any]] = [request.future, change]
            try:
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            finally:
                change.cancel()
            if not request.future.done() and self._seat.leader_address != self._to:
                client.leave("another node leads now")
        return request.future.result()

    def close(self) -> None:
        """Hang up."""
        if self._client is not None:
            self._client.leave("the client has left")
            self._client = None


def _may_be_asked_again(command: Command[Any]) -> bool:
    """Whether a repeat does no harm: what a claim took comes again when its lease ends."""
    return is_repeatable(command) or (isinstance(command, ClaimMessages) and not command.pop)


class NodeSession(AsyncEmbeddedSession):
    """The session of a node's own parts: what they write goes to the leading node, under its name."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._seat: Seat | None = None
        self._own: Forwarder | None = None

    def sit(self, seat: Seat) -> None:
        """From here on the store is a node's."""
        self._seat, self._own = seat, Forwarder(seat, seat.key, is_node=True)

    async def execute(self, command: Command[T], turns: ClientTurns | None = None) -> T:
        """As of any session; on a node that does not lead, the leading one carries out what writes."""
        seat, own = self._seat, self._own
        while seat is not None and own is not None and command.writes and not seat.leads:
            try:
                answer, sequence = wire.decode_placed(await own.ask(command))
            except NotLeader:
                if not seat.leads:
                    raise
                continue
            if not isinstance(
                command, Broadcast
            ):  # its sender has the offsets, and waits for no row
                await seat.reach(sequence)
            return result_of(command, answer)
        return await self.execute_here(command, turns)

    def begin(self, command: Operation[T]) -> asyncio.Future[T]:
        """As of any session; on a node that does not lead, it is handed on."""
        if self._seat is None or self._seat.leads:
            return super().begin(command)
        return asyncio.ensure_future(self.execute(command))

    async def catch_up(self) -> None:
        """Have all that the leading node has by now; a node that leads has it."""
        seat, own = self._seat, self._own
        if seat is None or own is None or seat.leads:
            return
        try:
            _, sequence = wire.decode_placed(await own.ask(GetBounds("")))
        except NotLeader:
            if not seat.leads:
                raise
            return
        await seat.reach(sequence)

    async def execute_for_node(self, command: Command[Any]) -> tuple[Any, int]:
        """Answer another node, and say up to which entry it must have come to see what was done."""
        assert self._seat is not None
        answer = await self.execute_here(command)
        return answer, self._seat.sequence()

    async def execute_here(self, command: Command[T], turns: ClientTurns | None = None) -> T:
        """Answer from this node's own store, whether it leads or not."""
        return await super().execute(command, turns)

    async def close(self) -> None:
        """Hang up, and close the store."""
        if self._own is not None:
            self._own.close()
        await super().close()
