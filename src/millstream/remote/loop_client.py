"""The client of coroutines: it keeps a connection to a server, for the requests of all callers.

A client belongs to one event loop. All requests of one turn of the loop go out in one frame. When
the connection is lost the client dials again, at once and then at growing, uneven intervals;
`repeats.py` decides about the requests meanwhile. If the server stays away for too long, every
waiting caller gets an error, and the client rests until the next request.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from msgspec import Raw

from millstream.clock import SystemClock
from millstream.errors import CannotOpen, Closed, InvalidInput, MillstreamError
from millstream.remote.address import Address
from millstream.remote.dial import OpenLoopConnection, dial_any, dial_leading
from millstream.remote.nodes import Nodes
from millstream.remote.pipeline import PendingRequest, Pipeline
from millstream.remote.repeats import DELAY_S_MAX, delay_s
from millstream.wire import commands as wire

FINISH_S = 5.0
"""How long a closing session waits for pending answers."""

RETURN_S = 0.5
"""How long a closing session waits for the answers of cancelled claims that wait at the server: messages
of an answer on its way would stay claimed until their lease ends."""

LANDING_S = 1.0
"""How long a node that does not lead is heard for pending answers."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a session waits for its server, in seconds."""

    connect_timeout_s: float
    """The timeout of an attempt to connect, including the greeting."""
    retry_for_s: float
    """How long a lost server may take to come back, or a cluster to get a leader and a quorum."""

    def __post_init__(self) -> None:
        for name, value in (
            ("connect_timeout", self.connect_timeout_s),
            ("retry_for", self.retry_for_s),
        ):
            if not value >= 0:
                raise InvalidInput(f"{name} is a number of seconds, not {value!r}")


class LoopClient:
    """A store behind one or several servers, for the tasks of one event loop."""

    def __init__(self, nodes: Nodes, patience: Patience, opened: OpenLoopConnection) -> None:
        self._nodes = nodes
        self.hello = opened.hello
        self.opened: OpenLoopConnection | None = opened
        self._patience = patience
        self._by_websocket = opened.is_websocket
        """Whether the last connection was a WebSocket: the next connection tries the same."""
        self._clock = SystemClock()
        self._pipeline = Pipeline(
            waiting_max=opened.hello.limits.waiting_operations_max, follow_s=patience.retry_for_s
        )
        self._leaving: asyncio.TimerHandle | None = None
        """When a node that does not lead is left."""
        self._resuming: asyncio.TimerHandle | None = None
        """When requests are sent that wait for a quorum."""
        self._is_moved = False
        """Whether the client has left a node that does not lead, and has chosen the next node."""
        self._is_flushing = False
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._closing = False
        self._attempt = 0
        """Attempts to connect since the last answer, or since a connection of some duration."""
        self._loop = asyncio.get_running_loop()
        self._keeping = asyncio.create_task(self._keep(opened))

    @classmethod
    async def open(cls, nodes: Nodes, patience: Patience) -> LoopClient:
        """Connect. Raises `CannotOpen` rather than try for long."""
        opened = await dial_any(nodes, timeout_s=patience.connect_timeout_s)
        return cls(nodes, patience, opened)

    @property
    def address(self) -> Address:
        """Return the address of the connected node, or of the next node to dial."""
        return self._nodes.current

    def ask(self, request: PendingRequest) -> None:
        """Send a request as soon as possible; it is always settled, by an answer or an error."""
        if self._closing:
            request.settle(self._closed())
        else:
            self._add(request)

    def give_back(self, request: PendingRequest) -> None:
        """Send a request that gives messages back, also while the client waits for its last answers."""
        if self.opened is not None or not self._closing:
            self._add(request)

    def _add(self, request: PendingRequest) -> None:
        self._pipeline.add(request)
        if self.opened is None:
            self._news.set()
        elif not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    @property
    def transport(self) -> str:
        """Return the transport of frames: `frames` on a bare connection, or `websocket`."""
        return "websocket" if self._by_websocket else "frames"

    def wait_ms(self) -> int:
        """Return how long a waiting request may stay with the server."""
        return self._pipeline.wait_ms(self.hello)

    @property
    def retry_for_s(self) -> float:
        """Return for how long a refused wait is sent again."""
        return self._patience.retry_for_s

    @property
    def is_open(self) -> bool:
        """Whether the client accepts requests."""
        return not self._closing

    def leave(self, why: str) -> None:
        """Close the connection at once: requests in flight are settled as lost."""
        self._closing = True
        self._pipeline.lost(why)
        self._pipeline.give_up(CannotOpen(f"{self.address.shown}: {why}", again=True))
        self._keeping.cancel()

    async def close(self) -> None:
        """Wait a while for the pending answers, and close the connection. A second call waits too."""
        await asyncio.sleep(0)  # callers cancelled in this turn refuse their answers first
        if not self._closing:
            self._flush()  # gives messages back that cancelled callers have claimed
            self._closing = True
            try:
                await self._finish()
            finally:  # also if the caller is cancelled
                self._keeping.cancel()
        await asyncio.wait([self._keeping])

    async def _finish(self) -> None:
        """Drop waiting requests, and wait a while for the answers of all others."""
        self._pipeline.drop_waiting(self._closed())
        if self.opened is None or not len(self._pipeline):
            return
        self._idle.clear()
        hearing = self._loop.call_later(RETURN_S, self._stop_hearing)
        try:
            async with asyncio.timeout(FINISH_S):
                await self._idle.wait()
        except TimeoutError:
            pass  # the pending requests get their error when the connection is closed
        finally:
            hearing.cancel()

    def _stop_hearing(self) -> None:
        """Wait no longer for cancelled claims."""
        self._pipeline.drop_refused(self._closed())
        if not len(self._pipeline):
            self._idle.set()

    async def _keep(self, opened: OpenLoopConnection) -> None:
        """Send and receive, and dial again whenever the connection is lost."""
        try:
            while True:
                async with self._on(opened):
                    since_s = self._clock.seconds()
                    why = await self._talk(opened)
                if self._clock.seconds() - since_s > DELAY_S_MAX:
                    self._attempt = 0
                self._pipeline.lost(why)
                self._idle.set()
                opened = await self._dial_again()
        finally:
            self._closing = True
            if self._resuming is not None:
                self._resuming.cancel()
            self._pipeline.give_up(self._closed())
            self._idle.set()

    @asynccontextmanager
    async def _on(self, opened: OpenLoopConnection) -> AsyncIterator[None]:
        if opened.hello.instance != self.hello.instance:
            self._pipeline.forget_sent(f"another store answers at {self.address.shown} now")
        self.opened, self.hello = opened, opened.hello
        try:
            yield
        finally:
            self.opened = None
            await opened.connection.close()
            self._nodes.is_left = not self._is_moved
            self._is_moved = False

    # A connection.

    async def _talk(self, opened: OpenLoopConnection) -> str:
        """Send and receive until the connection is lost; return the reason."""
        opened.connection.begin(self._hear, self._flush)
        self._flush()
        await asyncio.wait(
            [opened.connection.lost]
        )  # `wait` does not cancel the future with this task
        error = opened.connection.lost.result()
        if isinstance(error, InvalidInput):
            return f"{self.address.shown} sent something strange: {error.message}"
        return f"the connection to {self.address.shown} was lost"

    def _flush(self) -> None:
        """Send the gathered requests, as far as send buffer and credit allow."""
        self._is_flushing = False
        opened = self.opened
        while opened is not None and opened.connection.has_space:
            frame = self._pipeline.next_frame(opened.hello)
            if frame is None:
                self._await_quorum()
                return
            opened.connection.send(frame)

    def _await_quorum(self) -> None:
        """Flush again when requests that wait for a quorum are due."""
        left_s = self._pipeline.pause_s()
        if left_s is not None and self._resuming is None:
            self._resuming = self._loop.call_later(left_s, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self._flush()

    def _hear(self, frame: bytes) -> None:
        answers = wire.decode_answers(frame)
        self._pipeline.answered(answers)
        if self._pipeline.refusal is not None:
            self._await_landing()
            return
        self._attempt = 0
        if self._pipeline.has_waiting:
            self._flush()
        if not len(self._pipeline):
            self._idle.set()

    def _await_landing(self) -> None:
        """Leave a node that does not lead, after a moment for the pending answers."""
        if self._pipeline.is_landed:
            self._leave_node()
        elif self._leaving is None:
            self._leaving = self._loop.call_later(LANDING_S, self._leave_node)

    def _leave_node(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        refusal = self._pipeline.refusal
        if refusal is None or self.opened is None:
            return  # lost already
        leading = self._nodes.leading(refusal.data.get("leader"))
        self.opened.connection.abort()
        self._is_moved = True
        if leading is not None:
            self._nodes.go_to(leading)
        else:
            self._nodes.pass_on()

    # Between connections.

    async def _dial_again(self) -> OpenLoopConnection:
        since_s = self._clock.seconds()
        while True:
            await asyncio.sleep(delay_s(self._nodes.round_of(self._attempt), random.random()))
            self._attempt += 1
            try:
                return await dial_leading(
                    self._nodes,
                    timeout_s=self._patience.connect_timeout_s,
                    attempt=self._attempt - 1,
                    by_websocket=self._by_websocket,
                )
            except CannotOpen as error:
                away_s = self._clock.seconds() - since_s
                self._nodes.pass_on()
                may_do = error.again or self._attempt < len(self._nodes)
                if may_do and away_s < self._patience.retry_for_s:
                    continue
                self._pipeline.give_up(error)
            self._news.clear()
            await self._news.wait()  # until there is a request
            since_s, self._attempt = self._clock.seconds(), 0

    def _closed(self) -> Closed:
        return Closed(f"the connection to {self.address.shown} was closed here")


class LoopRequest(PendingRequest):
    """A request of a coroutine in the client's event loop."""

    __slots__ = ("_late", "_unwanted", "future")

    def __init__(self, command: Any) -> None:
        super().__init__(command)
        self.future: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._late: Raw | None = None
        """An answer that came after the cancel, before the caller's turn to refuse it."""
        self._unwanted: Callable[[Raw], None] | None = None

    def refuse(self, unwanted: Callable[[Raw], None]) -> None:
        """Pass the answer to `unwanted`, now or when it comes: the caller was cancelled."""
        if self._late is not None:
            unwanted(self._late)
        elif self.future.cancelled():
            self._unwanted = unwanted
        elif self.future.exception() is None:
            unwanted(self.future.result())

    @property
    def is_refused(self) -> bool:
        """Whether the caller has left, and what the answer brings must be given back."""
        return self._unwanted is not None

    def is_wanted(self) -> bool:
        """Whether the caller still waits."""
        return not self.future.done()

    def settle(self, outcome: Raw | MillstreamError) -> None:
        """Hand over the answer, unless the caller has stopped waiting."""
        if self.future.done():
            if isinstance(outcome, MillstreamError):
                pass
            elif self._unwanted is not None:
                self._unwanted(outcome)
            elif self.future.cancelled():
                self._late = outcome
        elif isinstance(outcome, MillstreamError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)
