"""All open connections of a server, of every port and protocol, and the tasks that serve them.

The bound on connections holds for all ports together. When the server stops, every connection is told to end, gets
time to finish what it has begun, and is cut then.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

REFUSED_MAX = 64
"""Connections beyond the bound that still get a refusal; further ones are cut without a word."""

TURN_S = 0.01
"""How often a stopping server looks whether all connections have gone."""


class OpenConnection(Protocol):
    """A connection of any protocol, as the server ends it."""

    transport: Any

    def shutdown(self) -> None:
        """Take no new request, and close once everything that was begun is answered.

        A connection whose conversation ends by `Core.closing` has nothing to do here.
        """


class Connections:
    """Counts connections and tasks; belongs to one event loop.

    `connections`, `tasks`, `total_requests` and `default_headers` are the names by which uvicorn's
    HTTP protocol uses the state of its server. The protocol gets this object instead.
    """

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.connections: set[OpenConnection] = set()
        self.handshakes: set[asyncio.Task[None]] = set()
        """Connections whose client and server have not agreed on TLS keys yet."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.total_requests = 0
        self.default_headers: list[tuple[bytes, bytes]] = []
        """Headers of every HTTP response."""
        self.is_draining = False
        """Whether every HTTP response is the last one of its connection."""

    def __len__(self) -> int:
        return len(self.connections) + len(self.handshakes)

    def excess(self) -> int:
        """Return by how many the connections pass the bound if one more comes; negative: it fits."""
        return len(self.connections) - self.connections_max

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Wait for a task when the server stops, and cancel it in the end."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def drain(self, seconds: float) -> None:
        """Let every client of HTTP hear with its next answer that its connection ends.

        A connection that is simply closed can meet a request that is on its way, and the client
        does not know whether the request was executed. Idle clients are not waited for.
        """
        self.is_draining = True
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + seconds
        while self.connections and loop.time() < deadline_s:
            await asyncio.sleep(TURN_S)

    async def end(self, grace_s: float) -> None:
        """Tell all connections to end, wait for their tasks and last answers, and cut the others."""
        for connection in list(self.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + grace_s
        while self.tasks and loop.time() < deadline_s:
            await asyncio.sleep(TURN_S)
        for task in list(self.tasks):
            task.cancel()
        while self.connections and loop.time() < deadline_s:
            await asyncio.sleep(TURN_S)  # their last answers are on the way
        for connection in list(self.connections):
            connection.transport.abort()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=TURN_S)
