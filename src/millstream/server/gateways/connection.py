"""Connections of gateways: the base class for the connections of foreign protocols.

The base counts a connection, refuses it beyond the bound of the server, cuts a client that has not
entered in time, counts bytes, and ends the connection when the server stops.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from millstream.errors import MillstreamError, Overloaded
from millstream.server.auth.authentication import CredentialReader
from millstream.server.gateways.client import GatewayClient, GatewayEntrance
from millstream.server.listen.connections import REFUSED_MAX

ENTER_S = 10.0
"""How long a client may take to show its credential."""

RETRY_S = 1
"""After how many seconds a client may try again that was one too many."""


class GatewayConnection(asyncio.Protocol, ABC):
    """One client's connection; a protocol derives its own connection from this class."""

    transport: asyncio.Transport

    def __init__(self, entrance: GatewayEntrance[Any]) -> None:
        self.client: GatewayClient | None = None
        """The client, once it has entered."""
        self._entrance = entrance
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopping = False
        self._enter_timer: asyncio.TimerHandle | None = None

    # What a protocol has to say.

    @abstractmethod
    def received(self, data: bytes) -> None:
        """Take bytes of the client; the protocol bounds how many of them it keeps."""

    @abstractmethod
    def refuse(self, error: MillstreamError) -> None:
        """Tell the client an error in the protocol's own bytes, by `write`."""

    # What a protocol may use.

    async def enter(self, request: Any) -> GatewayClient:
        """Let the client in by the credential of a request; raises `Unauthenticated`, `Overloaded`."""
        client = await self._entrance.enter(request)
        if self.transport.is_closing():
            client.leave()
        self.client = client
        if self._enter_timer is not None:
            self._enter_timer.cancel()
        return client

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for the client; a stopping server waits for the coroutine, then cancels."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        self._entrance.connections.watch(task)
        task.add_done_callback(self._ended)

    def write(self, data: bytes) -> None:
        """Send bytes, and count them; nothing is sent once the connection ends."""
        if not self.transport.is_closing():
            self._entrance.core.meter.sent_bytes.count += len(data)
            self.transport.write(data)

    # What the transport and the server say.

    def connection_made(self, transport: Any) -> None:
        """Count the connection, or refuse it if there are too many."""
        self.transport = transport
        connections = self._entrance.connections
        excess = connections.excess()
        connections.connections.add(self)
        if excess >= REFUSED_MAX:
            transport.abort()
        elif excess >= 0:
            self.refuse(Overloaded("too many connections; try again later", retry_after_s=RETRY_S))
            transport.close()
        else:
            self._enter_timer = self._loop.call_later(ENTER_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Count bytes and hand them to the protocol, unless the connection ends."""
        if not (self._is_stopping or self.transport.is_closing()):
            self._entrance.core.meter.received_bytes.count += len(data)
            self.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place of the connection, and cancel what was begun for it."""
        self._entrance.connections.connections.discard(self)
        if self._enter_timer is not None:
            self._enter_timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self.client is not None:
            self.client.leave()

    def shutdown(self) -> None:
        """Take no more bytes, and close once everything that was begun is answered."""
        self._is_stopping = True
        if not self._tasks:
            self.transport.close()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._is_stopping and not self._tasks:
            self.transport.close()


@dataclass(frozen=True, slots=True)
class Gateway:
    """The registration of a protocol: name, credential reader, connection class and port."""

    name: str
    credentials: CredentialReader[Any]
    connect: Callable[[GatewayEntrance[Any]], GatewayConnection]
    """Makes the connection of one client."""
    port: int = 0
    """The port on the host of the server; 0 means any free port."""
