"""A client of a gateway: it has entered by its credential, and asks commands."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from msgspec import Raw

from millstream.cluster.read_level import STRONG
from millstream.command import Command, waits
from millstream.errors import Closed, MillstreamError
from millstream.remote.results import result_of
from millstream.server.auth.access import Principal
from millstream.server.auth.authentication import CredentialReader
from millstream.server.claim_counts import ClaimCounts
from millstream.server.cluster.forwarder import Forwarder
from millstream.server.core import Core
from millstream.server.listen.connections import Connections

T = TypeVar("T")
Request = TypeVar("Request")


class GatewayEntrance(Generic[Request]):
    """Lets the clients of one gateway in: the gateway's credential reader, then the server's door."""

    def __init__(
        self, core: Core, connections: Connections, credentials: CredentialReader[Request]
    ) -> None:
        self.core = core
        self.connections = connections
        self._credentials = credentials

    async def enter(self, request: Request) -> GatewayClient:
        """Authenticate the sender of a request, and let it in; the client must `leave`."""
        admission = self.core.admission
        try:
            credential = await self._credentials.read(request)
            principal = await self.core.authentication.principal_of(credential)
            admission.enter(principal)
        except MillstreamError as error:
            admission.refuse_entry(error)
            raise
        return GatewayClient(self.core, principal, credential or "")


class GatewayClient:
    """A client after its entry; also a session for the nouns of `millstream.aio`."""

    def __init__(self, core: Core, principal: Principal, credential: str) -> None:
        self.principal = principal
        self.limits = core.session.limits
        self.clock = core.session.clock
        self._core = core
        self._holdings = ClaimCounts(core.settings.claims_open_max)
        self._forwarder = None if core.seat is None else Forwarder(core.seat, credential)
        self._has_left = False

    async def execute(self, command: Command[T]) -> T:
        """Pay for a command, have it admitted, and return its answer.

        A node that does not lead asks the leading node, and raises `NotLeader` without a leader. A
        waiting command ends with `Closed` when the server stops.
        """
        self._core.admission.pay(self.principal)
        if not waits(command):
            return await self._answer(command)
        answering = asyncio.ensure_future(self._answer(command))
        closing = asyncio.ensure_future(self._core.closing.wait())
        try:
            await asyncio.wait([answering, closing], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            raise Closed("the server is stopping")
        finally:
            closing.cancel()
            await self._abandon(command, answering)

    async def _abandon(self, command: Command[Any], answering: asyncio.Future[Any]) -> None:
        """Cancel a waiting command, and return the messages that it has claimed meanwhile."""
        if answering.done():
            return
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        if not answering.cancelled() and answering.exception() is None:
            answer = answering.result()
            self._core.return_claims(self.principal, command, answer, self._holdings)

    async def _answer(self, command: Command[T]) -> T:
        core = self._core
        if core.seat is None:
            return await core.execute(self.principal, command, self._holdings)
        answer = await core.answer_in_cluster(
            self.principal, command, self._holdings, self._forwarder, level=STRONG, traceparent=None
        )
        if isinstance(answer, Raw):  # the leading node's, as it came
            return result_of(command, answer)
        return answer  # type: ignore[no-any-return]

    def leave(self) -> None:
        """End the client's connection; a second call does nothing."""
        if not self._has_left:
            self._has_left = True
            self._core.admission.leave(self.principal)
            if self._forwarder is not None:
                self._forwarder.close()

    async def close(self) -> None:
        """Do nothing: the store is the server's."""
