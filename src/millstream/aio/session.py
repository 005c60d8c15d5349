"""The embedded session for coroutines: answers commands from a store in this process.

Operations that are asked for in one turn of the event loop are handed to the transactor as one
list; their answers come back from the commit thread with one call into the loop. Reads and
procedures run in a few threads of the session's own. A caller that waits holds no thread meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from millstream.command import Command, Operation, tidies
from millstream.embedded import WAITS, answer, operation
from millstream.errors import Closed, MillstreamError
from millstream.queue.commands import ClaimMessages
from millstream.queue.model.message import Lot
from millstream.queue.service import consuming as service
from millstream.queue.service.reading import are_at_hand, read_grants
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


class _Later:
    """A question that a thread of the pool answers as soon as any thread says so.

    The event loop is not woken before there is an answer.
    """

    def __init__(
        self,
        question: Callable[[], Any],
        pool: ThreadPoolExecutor,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._question = question
        self._pool = pool
        self._call_soon = call_soon
        self._begun = threading.Lock()

    def begin(self) -> None:
        """Answer now; a second call does nothing."""
        if self.withdraw():
            try:
                self._pool.submit(self._run)
            except RuntimeError:
                self._call_soon(self._give_up)  # the session was closed

    def withdraw(self) -> bool:
        """Never begin; False if it has begun."""
        return self._begun.acquire(blocking=False)

    def _give_up(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(Closed("the store was closed"))

    def _run(self) -> None:
        if self.answer.done():
            return  # nobody waits any more
        try:
            settle = partial(self.answer.set_result, self._question())
        except BaseException as error:
            settle = partial(self.answer.set_exception, error)
        self._call_soon(lambda: None if self.answer.done() else settle())


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

    async def execute(self, command: Command[T]) -> T:
        """Answer a command; what it writes is durable then.

        If the caller is cancelled, it may still be carried out; other callers notice nothing.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a store that was opened in one event loop is used in another")
        if isinstance(command, Operation):
            result: T = await self._commit(command)
            if tidies(command):
                self.store.tend_soon()
            return result
        wait = WAITING.get(type(command))
        if wait is not None:
            found: T = await wait(self, command)
            return found
        return await self._ask(answer, self.store, command)

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

    async def _commit(self, command: Operation[T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._gathered:
            self._loop.call_soon(self._hand_in)
        self._gathered.append(_Asked(operation(command), future=future))
        return await future

    def _hand_in(self) -> None:
        """Submit what was gathered in this turn, in pieces that one commit can take."""
        gathered = [asked for asked in self._gathered if not asked.future.done()]
        self._gathered = []
        size = self.limits.group_operations_max
        for first in range(0, len(gathered), size):
            group = _Group(gathered[first : first + size], self._call_soon)
            try:
                self.store.submit([*group.asked])
            except MillstreamError as error:
                for asked in group.asked:
                    asked.error = fresh(error)
                group.settle()

    # Reads and procedures.

    async def _ask(self, question: Callable[..., T], *arguments: Any) -> T:
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return question(*arguments)  # it refuses at once
        return await self._loop.run_in_executor(self._pool, partial(question, *arguments))

    async def _wait(self, command: Command[Any]) -> Any:
        """As `sleep.wait`, without a thread while it sleeps."""
        waiting = WAITS[type(command)](self.store, command)  # type: ignore[index]
        while isinstance(step := await self._ask(step_of, waiting), Sleep):
            changed = asyncio.Event()
            with watching(self.store.watch, step, partial(self._wake, changed)):
                if not await self._ask(step.is_over):
                    try:
                        async with asyncio.timeout(step.seconds):
                            await changed.wait()
                    except TimeoutError:
                        pass  # the wait looks at its own clock
        return step.answer

    async def _claim(self, command: ClaimMessages) -> list[Lot]:
        """As `service.claim_messages`, without a thread while it waits."""
        clock, wait_ms = self.store.clock, command.wait_ms
        deadline = None if wait_ms is None else clock.seconds() + wait_ms / 1000
        while True:
            found = await self._claim_now(command)
            left_s = 0.0 if deadline is None else deadline - clock.seconds()
            if found or left_s <= 0:
                return found
            command = replace(command, acked=[])
            found = await self._claim_at_change(command, left_s)
            if found:
                return found

    async def _claim_now(self, command: ClaimMessages) -> list[Lot]:
        """As `service.claim_now`; what is known to be routed is claimed by the loop's own commits."""
        routed = service.claim_ahead(self.store, command)
        if routed is None:
            return await self._ask(service.claim_now, self.store, command)
        granted = await self._commit(routed)
        service.note_ahead(self.store, command.queue, granted)
        left = command.count - granted.count
        if left > 0 and not granted.ahead:
            rest = replace(command, acked=[], count=left)
            return await self._ask(service.claim_now, self.store, rest, granted.grants)
        if are_at_hand(self.store, granted.grants):
            return read_grants(self.store, command.queue, granted.grants)
        found = await self._ask(read_grants, self.store, command.queue, granted.grants)
        if found or not granted.grants:
            return found
        rest = replace(command, acked=[])  # all of these were damaged, and have failed
        return await self._ask(service.claim_now, self.store, rest)

    async def _claim_at_change(self, command: ClaimMessages, left_s: float) -> list[Lot]:
        """Claim once there may be something; nothing if there was none, or the time is up."""
        later = _Later(partial(service.claim_now, self.store, command), self._pool, self._call_soon)
        try:
            with ExitStack() as watches:
                for key in await self._ask(service.watched_keys, self.store, command.queue):
                    watches.enter_context(self.store.watch.waiting(key, later.begin))
                # What came before the watch began woke nobody: look once more.
                patience_s = await self._ask(service.patience, self.store, command.queue, left_s)
                async with asyncio.timeout(patience_s):
                    return await asyncio.shield(later.answer)
        except TimeoutError:
            return [] if later.withdraw() else await later.answer
        finally:
            later.answer.cancel()

    def _wake(self, changed: asyncio.Event) -> None:
        if not changed.is_set():
            self._call_soon(changed.set)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        """From any thread. A loop that is closed has nobody left who could want the answer."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


WAITING: dict[type[Command[Any]], Callable[[AsyncEmbeddedSession, Any], Awaitable[Any]]] = {
    ClaimMessages: AsyncEmbeddedSession._claim,
    **dict.fromkeys(WAITS, AsyncEmbeddedSession._wait),
}
"""How coroutines wait: one that is not here would hold a thread meanwhile."""
