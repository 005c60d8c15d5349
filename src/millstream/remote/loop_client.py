"""The link: keeps a connection to a server, for the requests of all callers.

It lives in one event loop. Whatever is asked for in one turn of the loop goes out in one frame. When the connection is lost it dials again, at once and then at growing, uneven intervals;
`repeats.py` says what becomes of requests meanwhile. If the server stays away for too long,
every waiting caller is told, and the link rests until the next request.
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
from millstream.remote.dialing import OpenConnection, dial_any, dial_leading
from millstream.remote.nodes import Nodes
from millstream.remote.pipeline import Asked, Pipeline
from millstream.remote.repeats import DELAY_S_MAX, delay_s
from millstream.wire import commands as wire

FINISH_S = 5.0
"""How long a session that is closed waits for answers to what it has sent."""

LANDING_S = 1.0
"""How long a node that does not lead is heard about what else was sent to it."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a session waits for its server, in seconds."""

    connect_timeout_s: float
    """For one attempt to connect, up to the greeting."""
    retry_for_s: float
    """For a server that went away to come back, and for a cluster to have a leader and a quorum."""

    def __post_init__(self) -> None:
        for name, value in (
            ("connect_timeout", self.connect_timeout_s),
            ("retry_for", self.retry_for_s),
        ):
            if not value >= 0:
                raise InvalidInput(f"{name} is a number of seconds, not {value!r}")


class Link:
    """One store behind one server or several, for the tasks of one event loop."""

    def __init__(self, nodes: Nodes, patience: Patience, line: OpenConnection) -> None:
        self._nodes = nodes
        self.hello = line.hello
        self.line: OpenConnection | None = line
        self._patience = patience
        self._by_websocket = line.is_websocket
        """What has come through once is asked for again."""
        self._clock = SystemClock()
        self._pipeline = Pipeline(
            waiting_max=line.hello.limits.waiting_operations_max, follow_s=patience.retry_for_s
        )
        self._leaving: asyncio.TimerHandle | None = None
        """When a node that does not lead is left."""
        self._resuming: asyncio.TimerHandle | None = None
        """When requests are sent that were put off for want of a quorum."""
        self._is_moved = False
        """Whether a node that does not lead has been left for the one to dial next."""
        self._is_flushing = False
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._closing = False
        self._attempt = 0
        """Attempts to connect since the server last answered anything, or stood for a while."""
        self._loop = asyncio.get_running_loop()
        self._keeping = asyncio.create_task(self._keep(line))

    @classmethod
    async def open(cls, nodes: Nodes, patience: Patience) -> Link:
        """Connect; raises `CannotOpen` rather than try for long."""
        line = await dial_any(nodes, timeout_s=patience.connect_timeout_s)
        return cls(nodes, patience, line)

    @property
    def address(self) -> Address:
        """The node that is connected, or dialed next."""
        return self._nodes.current

    def ask(self, asked: Asked) -> None:
        """Send a request as soon as possible; it is always settled, by an answer or an error."""
        if self._closing:
            asked.settle(self._closed())
            return
        self._pipeline.add(asked)
        if self.line is None:
            self._news.set()
        elif not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    @property
    def transport(self) -> str:
        """How frames travel: `frames` on a bare connection, or `websocket`."""
        return "websocket" if self._by_websocket else "frames"

    def wait_ms(self) -> int:
        """How long a request that waits may stay with the server."""
        return self._pipeline.wait_ms(self.hello)

    @property
    def retry_for_s(self) -> float:
        """For how long a wait that is refused is asked again."""
        return self._patience.retry_for_s

    @property
    def is_open(self) -> bool:
        """Whether it still takes requests."""
        return not self._closing

    def leave(self, why: str) -> None:
        """Hang up without a word: what is in flight is settled at once, as if it were lost."""
        self._closing = True
        self._pipeline.lost(why)
        self._pipeline.give_up(CannotOpen(f"{self.address.shown}: {why}", again=True))
        self._keeping.cancel()

    async def close(self) -> None:
        """Hear the answers to what was sent, for a while, and hang up. A second call waits too."""
        if not self._closing:
            self._closing = True
            self._pipeline.drop_waiting(self._closed())
            if self.line is not None and len(self._pipeline):
                self._idle.clear()
                try:
                    async with asyncio.timeout(FINISH_S):
                        await self._idle.wait()
                except TimeoutError:
                    pass  # they get their error below
            self._keeping.cancel()
        await asyncio.wait([self._keeping])

    async def _keep(self, line: OpenConnection) -> None:
        """Talk, and dial again whenever the connection is lost."""
        try:
            while True:
                async with self._on(line):
                    since_s = self._clock.seconds()
                    why = await self._talk(line)
                if self._clock.seconds() - since_s > DELAY_S_MAX:
                    self._attempt = 0
                self._pipeline.lost(why)
                self._idle.set()
                line = await self._dial_again()
        finally:
            self._closing = True
            if self._resuming is not None:
                self._resuming.cancel()
            self._pipeline.give_up(self._closed())
            self._idle.set()

    @asynccontextmanager
    async def _on(self, line: OpenConnection) -> AsyncIterator[None]:
        if line.hello.instance != self.hello.instance:
            self._pipeline.forget_sent(f"another store answers at {self.address.shown} now")
        self.line, self.hello = line, line.hello
        try:
            yield
        finally:
            self.line = None
            await line.line.close()
            self._nodes.is_left = not self._is_moved
            self._is_moved = False

    # One connection.

    async def _talk(self, line: OpenConnection) -> str:
        """Send and hear until the connection is lost; answers why."""
        line.line.begin(self._hear, self._flush)
        self._flush()
        await asyncio.wait([line.line.lost])  # which is not cancelled with this task
        error = line.line.lost.result()
        if isinstance(error, InvalidInput):
            return f"{self.address.shown} sent something strange: {error.message}"
        return f"the connection to {self.address.shown} was lost"

    def _flush(self) -> None:
        """Send what has gathered, for as long as there is room and credit."""
        self._is_flushing = False
        line = self.line
        while line is not None and line.line.has_room:
            frame = self._pipeline.next_frame(line.hello)
            if frame is None:
                self._await_quorum()
                return
            line.line.send(frame)

    def _await_quorum(self) -> None:
        """Flush again when the requests are due that were put off."""
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
        """The node does not lead: hear what else was sent to it, for a moment, and leave it."""
        if self._pipeline.is_landed:
            self._leave_node()
        elif self._leaving is None:
            self._leaving = self._loop.call_later(LANDING_S, self._leave_node)

    def _leave_node(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        refusal = self._pipeline.refusal
        if refusal is None or self.line is None:
            return  # it is lost already
        leading = self._nodes.leading(refusal.data.get("leader"))
        self.line.line.abort()
        self._is_moved = True
        if leading is not None:
            self._nodes.go_to(leading)
        else:
            self._nodes.pass_on()

    # Between connections.

    async def _dial_again(self) -> OpenConnection:
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


class LoopRequest(Asked):
    """A request of a coroutine in the link's own loop."""

    __slots__ = ("_unwanted", "future")

    def __init__(self, command: Any) -> None:
        super().__init__(command)
        self.future: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._unwanted: Callable[[Raw], None] | None = None

    def refuse(self, unwanted: Callable[[Raw], None]) -> None:
        """The caller was cancelled: `unwanted` is told the answer, which is there or may yet come."""
        if self.future.cancelled():
            self._unwanted = unwanted
        elif self.future.exception() is None:
            unwanted(self.future.result())

    def is_wanted(self) -> bool:
        """Not if it was cancelled."""
        return not self.future.done()

    def settle(self, outcome: Raw | MillstreamError) -> None:
        """Give the answer, unless the caller has stopped waiting."""
        if self.future.done():
            if self._unwanted is not None and not isinstance(outcome, MillstreamError):
                self._unwanted(outcome)
        elif isinstance(outcome, MillstreamError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)
