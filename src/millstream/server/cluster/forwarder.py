"""Forwarding: commands that this node may not answer are sent to the leader over its socket.

A forwarder serves a client, or the node itself. It sends the client's own token, so that
the leader checks the permissions. It follows changes of the leader. A command that was refused, or
never sent, is sent again to the next leader. A command that may have been executed is
`OutcomeUnknown`.
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
from millstream.server.cluster.role import AGAIN_S, FORWARD_S, ClusterRole
from millstream.store.store import Store
from millstream.wire import commands as wire

T = TypeVar("T")

CONNECT_S = 2.0
"""The timeout of one attempt to connect to the leader."""


class NodeRequest(LoopRequest):
    """A command of the node itself; commands that are forbidden to clients are allowed."""

    __slots__ = ()

    def encode(self, command: Command[Any]) -> Raw:
        """Encode the command without the check for clients."""
        return wire.encode_internal(command)


class Forwarder:
    """Sends commands to the current leader. Belongs to the event loop."""

    def __init__(self, seat: ClusterRole, credential: str, *, is_node: bool = False) -> None:
        self._seat = seat
        self._credential = credential
        self._request = NodeRequest if is_node else LoopRequest
        self._client: LoopClient | None = None
        self._to = ""
        self._opening = asyncio.Lock()

    async def ask(self, command: Command[Any]) -> Raw:
        """Return the leader's answer. Raises `NotLeader` if no node leads, or this node leads
        now."""
        seat, loop = self._seat, asyncio.get_running_loop()
        until_s = loop.time() + FORWARD_S
        while True:
            try:
                client = await self._connected(until_s)
                answer = await self._answer(client, command)
                seat.handed_on += 1
                return answer
            except (CannotOpen, NotLeader, Interrupted):
                pass  # nothing was executed: try the next leader
            except OutcomeUnknown:
                if not _may_be_asked_again(command):
                    raise
            if seat.leads or loop.time() >= until_s:
                raise seat.not_leader()
            await seat.changed(AGAIN_S)
            seat.look()

    async def _connected(self, until_s: float) -> LoopClient:
        """Return the connection to the leader; wait for an election, but not longer than `until_s`.

        The lock keeps requests in their order of arrival, also while no node leads.
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
        """Return the connection to the current leader. Raises `NotLeader` if no leader is known."""
        leader_address = self._seat.leader_address
        if not leader_address:
            raise self._seat.not_leader()
        if self._client is None or self._to != leader_address or not self._client.is_open:
            self.close()
            self._client = await LoopClient.open(
                Nodes([self._address(leader_address)]),
                Patience(connect_timeout_s=CONNECT_S, retry_for_s=0),
            )
            self._to = leader_address
        return self._client

    def _address(self, text: str) -> Address:
        return parse_address(text, token=self._credential, ca=self._seat.ca, is_handed_on=True)

    async def _answer(self, client: LoopClient, command: Command[Any]) -> Raw:
        """Send a command, and hang up if another node leads before the answer arrives.

        A leader that was replaced may never answer. Hanging up makes the outcome unknown, which is
        true: the old leader may have committed the command before.
        """
        request = self._request(command)
        client.ask(request)
        while not request.future.done():
            change = asyncio.ensure_future(self._seat.changed(FORWARD_S))
            awaited: list[asyncio.Future[Any]] = [request.future, change]
            try:
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            finally:
                change.cancel()
            if not request.future.done() and self._seat.leader_address != self._to:
                client.leave("another node leads now")
        return request.future.result()

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.leave("the client has left")
            self._client = None


def _may_be_asked_again(command: Command[Any]) -> bool:
    """Whether a repeat does no harm.

    Claims may be repeated: messages of a lost claim are claimed again when their leases end.
    """
    return is_repeatable(command) or (isinstance(command, ClaimMessages) and not command.pop)


class NodeSession(AsyncEmbeddedSession):
    """The session of a node's own parts: the leader executes their writes, for this node."""

    def __init__(self, store: Store, seat: ClusterRole | None = None) -> None:
        super().__init__(store)
        self._seat = seat
        self._forwarder = None if seat is None else Forwarder(seat, seat.key, is_node=True)

    async def execute(self, command: Command[T], turns: ClientTurns | None = None) -> T:
        """Execute a command here; on a follower, the leader executes commands that write."""
        seat, forwarder = self._seat, self._forwarder
        while seat is not None and forwarder is not None and command.writes and not seat.leads:
            try:
                answer, sequence = wire.decode_placed(await forwarder.ask(command))
            except NotLeader:
                if not seat.leads:
                    raise
                continue
            # The sender of a broadcast has its offsets from the answer, and reads no row.
            if not isinstance(command, Broadcast):
                await seat.reach(sequence)
            return result_of(command, answer)
        return await self.execute_here(command, turns)

    def begin(self, command: Operation[T]) -> asyncio.Future[T]:
        """Begin an operation here; on a follower, the leader executes it."""
        if self._seat is None or self._seat.leads:
            return super().begin(command)
        return asyncio.ensure_future(self.execute(command))

    async def catch_up(self) -> None:
        """Wait until this node has applied all that the leader has committed by now."""
        seat, forwarder = self._seat, self._forwarder
        if seat is None or forwarder is None or seat.leads:
            return
        try:
            _, sequence = wire.decode_placed(await forwarder.ask(GetBounds("")))
        except NotLeader:
            if not seat.leads:
                raise
            return
        await seat.reach(sequence)

    async def execute_for_node(self, command: Command[Any]) -> tuple[Any, int]:
        """Answer another node, with the entry up to which that node must apply the shared log.

        After this entry the other node's own store shows the effect of the command.
        """
        assert self._seat is not None
        answer = await self.execute_here(command)
        return answer, self._seat.sequence()

    async def execute_here(self, command: Command[T], turns: ClientTurns | None = None) -> T:
        """Answer from this node's own store, whether it leads or not."""
        return await super().execute(command, turns)

    async def close(self) -> None:
        """Close the connection to the leader, and the store."""
        if self._forwarder is not None:
            self._forwarder.close()
        await super().close()
