"""The other server processes of a group, as one process sees them.

Each process has a second port on loopback, where it answers the same requests as on the shared port.
A process asks its siblings there for their clients and metrics, with the credential of the client.
Staged parts of bulk writers are kept by one process per transaction: the process that got a request
from the shared port passes it to that process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from zlib import crc32

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from millstream.clock import Clock
from millstream.cluster.read_level import HOP_HEADER
from millstream.errors import MillstreamError, OutcomeUnknown, Overloaded
from millstream.remote.address import Address, parse_address
from millstream.remote.http import BrokenHttp, LoopConnections
from millstream.server.cluster.relayed_request import SAFE, Passage, refuse
from millstream.server.cluster.role import Asker
from millstream.server.observe.health import Check
from millstream.server.processes.figures import ProcessFigures, SharedFigures
from millstream.server.processes.place import ProcessPlace

CONNECT_S = 2.0
ANSWER_S = 5.0
"""How long a sibling may take to answer about itself."""
SILENT_MS = 10_000
"""A process that has written no figures for this long does not serve."""
STAGING = b"/staging/"
_HOP = (HOP_HEADER.encode(), b"1")
"""The header that asks a process for its own share of an answer."""


class Siblings:
    """The processes of this process's group. Belongs to one event loop."""

    def __init__(self, place: ProcessPlace, clock: Clock) -> None:
        self.number = place.number
        self._figures = SharedFigures(place.figures_fd, place.count)
        self._clock = clock
        self._port = 0
        self._connections = LoopConnections()

    def serve_at(self, port: int) -> None:
        """Tell the siblings the port of this process."""
        self._port = port

    # Figures.

    def write(self, connections: int, commits: Sequence[int]) -> None:
        """Write the figures of this process; the siblings read the figures."""
        figures = ProcessFigures(
            port=self._port,
            beat_ms=self._clock.boot_ms(),
            connections=connections,
            commits=tuple(commits),
        )
        self._figures.write(self.number, figures)

    def figures(self) -> list[ProcessFigures]:
        """Return the figures of all processes."""
        return self._figures.all()

    def check(self) -> Check:
        """Check whether all processes of the group serve."""
        now_ms = self._clock.boot_ms()
        missing = [
            number
            for number, row in enumerate(self._figures.all(), 1)
            if number != self.number and not (row.port and now_ms - row.beat_ms < SILENT_MS)
        ]
        count = self._figures.count
        if not missing:
            return Check("processes", "healthy", f"all {count} processes serve")
        numbers = ", ".join(map(str, missing))
        return Check("processes", "warning", f"of {count} processes, these do not serve: {numbers}")

    # Questions to siblings.

    async def ask_all(self, request: Request) -> list[tuple[int, bytes]]:
        """Ask each sibling for its share of the answer to a request; leave out silent siblings."""
        target = request.url.path.encode()
        authorization = request.headers.get("authorization", "").encode("latin-1")
        headers = [_HOP, *([(b"authorization", authorization)] if authorization else [])]
        numbers = [number for number in range(1, self._figures.count + 1) if number != self.number]
        answers = await asyncio.gather(*(self._ask(number, target, headers) for number in numbers))
        return [
            (number, answer)
            for number, answer in zip(numbers, answers, strict=True)
            if answer is not None
        ]

    async def _ask(
        self, number: int, target: bytes, headers: list[tuple[bytes, bytes]]
    ) -> bytes | None:
        address = self._address(number)
        if address is None:
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                exchange = await self._connections.open(address, timeout_s=CONNECT_S, fresh=True)
                try:
                    host = (b"host", address.host_header.encode())
                    await exchange.begin("GET", target, [host, *headers])
                    status, _ = await exchange.head()
                    body = b"".join([piece async for piece in exchange.body()])
                finally:
                    exchange.cut()
        except (BrokenHttp, TimeoutError):
            return None
        return body if status == 200 else None

    def _address(self, number: int, credential: str = "") -> Address | None:
        """Return the address of a process; None while it does not serve."""
        port = self._figures.read(number).port
        if not port:
            return None
        return parse_address(f"http://127.0.0.1:{port}", token=credential, is_handed_on=True)

    # Staged parts: the relay of the guard.

    def takes(self, scope: Scope, asker: Asker) -> bool:
        """Whether another process keeps the staged parts that a request is about."""
        if scope["type"] != "http" or asker.is_handed_on:
            return False
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        return path.startswith(STAGING) and self._keeper_of(path) != self.number

    async def hand_on(self, scope: Scope, receive: Receive, send: Send, asker: Asker) -> bool:
        """Let the process that keeps a staged transaction answer."""
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        number = self._keeper_of(path)
        address = self._address(number, asker.credential)
        error: MillstreamError = Overloaded(
            f"server process {number}, which keeps these staged parts, is being restarted; try again"
        )
        if address is None:
            await refuse(error, scope, receive, send)
            return True
        try:
            exchange = await self._connections.open(address, timeout_s=CONNECT_S)
        except BrokenHttp:
            await refuse(error, scope, receive, send)
            return True
        passage = Passage(address, exchange, scope, receive, send)
        try:
            await passage.run()
        except BrokenHttp as broken:
            if passage.is_answered:
                raise  # the client sees a truncated answer
            if passage.method not in SAFE and broken.was_sent:
                error = OutcomeUnknown(
                    f"server process {number} ended during this request: it may have been executed "
                    "or not. Repeat it: a transaction is committed once"
                )
            await refuse(error, scope, receive, send)
        finally:
            if passage.has_left:
                exchange.cut()
            else:
                self._connections.give_back(address, exchange)
        return True

    def _keeper_of(self, path: bytes) -> int:
        """Return the number of the process that keeps a staged transaction."""
        name = path.removeprefix(STAGING).partition(b"/")[0].partition(b"?")[0]
        return 1 + crc32(name) % self._figures.count

    def close(self) -> None:
        """Close all connections to siblings, and release the figures."""
        self._connections.close()
        self._figures.close()
