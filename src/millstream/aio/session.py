"""The embedded session for coroutines: answers commands from a store in this process.

Operations that are asked for in one turn of the event loop are handed to the transactor as one
list. While commits are fast, the loop makes light ones itself; else their answers come back from the
commit thread with one call into the loop. Reads and procedures run in a few threads of the session's
own. A caller that waits holds no thread meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from millstream.aio.claiming import Claims, ClientTurns
from millstream.aio.feeds import Feeds
from millstream.aio.weight import are_light, weight_of
from millstream.command import Command, Operation, tidies
from millstream.embedded import WAITS, answer, operation, put_for_later
from millstream.errors import MillstreamError
from millstream.log.commands import WaitForOffset
from millstream.queue.commands import ClaimMessages
from millstream.queue.model.message import Lot
from millstream.queue.service.consuming import route_before
from millstream.store.sleep import Sleep, step_of, watching
from millstream.store.store import Store
from millstream.store.ticket import Ticket
from millstream.store.transactor import fresh

T = TypeVar("T")

QUERY_THREADS = 4
"""Reads are short and mostly hold the interpreter's lock: more threads would only take turns."""


class _Asked(Ticket[Any], eq=False, kw_only=True):
    """A ticket with the future of the coroutine that waits for it."""

    future: asyncio.Future[Any]
    weight: int
    """About how many bytes and records it handles."""

    def settle(self) -> None:
        """Give the answer, unless nobody waits any more."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class _Group:
    """Tickets that are handed in together, and answered together when the last has landed."""

    __slots__ = ("_call_soon", "_landed", "asked")

    def __init__(
        self, asked: list[_Asked], call_soon: Callable[[Callable[[], None]], None]
    ) -> None:
        self.asked = asked
        self._call_soon = call_soon
        self._landed: list[Ticket[Any]] = []
        for one in asked:
            one.on_done = self._land

    def _land(self, ticket: Ticket[Any]) -> None:
        """Called on the commit thread, for one ticket after the other: ring once for all."""
        self._landed.append(ticket)
        if len(self._landed) == len(self.asked):
            self._call_soon(self.settle)

    def settle(self) -> None:
        """Give the answers; in the event loop."""
        for one in self.asked:
            one.settle()


class AsyncEmbeddedSession:
    """Answers the coroutines of one event loop: the one that runs when it is made."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.limits = store.limits
        self.clock = store.clock
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="millstream-query")
        self._gathered: list[_Asked] = []
        self._closing: asyncio.Future[None] | None = None
        self._claims = Claims(store, self)
        self.feeds = Feeds(self)
        """The logs that this session follows: one tail each, however many wait or listen."""

    async def execute(self, command: Command[T], turns: ClientTurns | None = None) -> T:
        """Answer a command; what it writes is durable then.

        If the caller is cancelled, it may still be carried out; other callers notice nothing. A
        command that waits takes one of the `turns`, if there are such, each time it looks.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a store that was opened in one event loop is used in another")
        if isinstance(command, Operation):
            if queues := put_for_later(command):
                await self.ask(route_before, self.store, queues, turns=turns)
            result: T = await self.commit(command)
            if tidies(command):
                self.store.tend_soon()
            return result
        wait = WAITING.get(type(command))
        if wait is not None:
            found: T = await wait(self, command, turns)
            return found
        return await self.ask(answer, self.store, command)

    async def close(self) -> None:
        """Close the store; calls that still wait get `Closed`."""
        if self._closing is None:
            self._closing = self._loop.run_in_executor(self._pool, self.store.close)
            self._closing.add_done_callback(self._closed)
        await asyncio.shield(self._closing)

    def _closed(self, closing: asyncio.Future[None]) -> None:
        if closing.cancelled() or closing.exception() is not None:
            self._closing = None
        else:
            self._pool.shutdown(wait=False)

    # Operations: gathered, then handed in.

    async def commit(self, command: Operation[T]) -> T:
        """Carry out an operation, in one commit with all others of this turn of the event loop."""
        return await self.begin(command)

    def begin(self, command: Operation[T]) -> asyncio.Future[T]:
        """Hand an operation in, with all others of this turn; its answer comes when it is durable."""
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._gathered:
            self._loop.call_soon(self._hand_in)
        asked = _Asked(operation(command), future=future, weight=weight_of(command))
        self._gathered.append(asked)
        return future

    def _hand_in(self) -> None:
        """Submit what was gathered in this turn, in pieces that one commit can take."""
        gathered = [asked for asked in self._gathered if not asked.future.done()]
        self._gathered = []
        size = self.limits.group_operations_max
        for first in range(0, len(gathered), size):
            group = _Group(gathered[first : first + size], self.call_soon)
            light = are_light([asked.weight for asked in gathered])
            try:
                self.store.submit([*group.asked], light=light)
            except MillstreamError as error:
                for asked in group.asked:
                    asked.error = fresh(error)
                group.settle()

    # Reads and procedures.

    async def ask(
        self, question: Callable[..., T], *arguments: Any, turns: ClientTurns | None = None
    ) -> T:
        """Have a thread of the pool answer, in one of the client's turns if it has such."""
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return question(*arguments)  # it refuses at once
        asked = partial(question, *arguments)
        if turns is None:
            return await self._loop.run_in_executor(self._pool, asked)
        async with turns:
            return await self._loop.run_in_executor(self._pool, asked)

    async def _claim(self, command: ClaimMessages, turns: ClientTurns | None) -> list[Lot]:
        return await self._claims.claim(command, turns)

    async def _wait_for_offset(self, command: WaitForOffset, turns: ClientTurns | None) -> bool:
        """A caller more that waits for the log's feed, which takes no turn of a client."""
        return await self.feeds.wait(
            command.log, command.offset, command.timeout_ms, command.setbacks
        )

    async def _wait(self, command: Command[Any], turns: ClientTurns | None) -> Any:
        """As `sleep.wait`, without a thread while it sleeps."""
        waiting = WAITS[type(command)](self.store, command)  # type: ignore[index]
        while isinstance(step := await self.ask(step_of, waiting, turns=turns), Sleep):
            changed = asyncio.Event()
            with watching(self.store.watch, step, partial(self._wake, changed)):
                if not await self.ask(step.is_over, turns=turns):
                    try:
                        async with asyncio.timeout(step.seconds):
                            await changed.wait()
                    except TimeoutError:
                        pass  # the wait looks at its own clock
        return step.answer

    def submit(self, work: Callable[[], None]) -> None:
        """Have a thread of the pool work; from any thread. RuntimeError once it was closed."""
        self._pool.submit(work)

    def _wake(self, changed: asyncio.Event) -> None:
        if not changed.is_set():
            self.call_soon(changed.set)

    def is_here(self) -> bool:
        """Whether the event loop itself is calling, and not another thread."""
        return asyncio._get_running_loop() is self._loop

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call in the event loop; from any thread. A loop that is closed has nobody left who could want the answer."""
        try:
            if self.is_here():
                self._loop.call_soon(callback)  # it need not be woken
            else:
                self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


Waiting = Callable[[AsyncEmbeddedSession, Any, ClientTurns | None], Awaitable[Any]]

WAITING: dict[type[Command[Any]], Waiting] = {
    ClaimMessages: AsyncEmbeddedSession._claim,
    **dict.fromkeys(WAITS, AsyncEmbeddedSession._wait),
    WaitForOffset: AsyncEmbeddedSession._wait_for_offset,
}
"""How coroutines wait: one that is not here would hold a thread meanwhile."""
