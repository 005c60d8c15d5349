"""The embedded session for coroutines: answers commands from a store in this process.

Operations that are asked for in one turn of the event loop are handed to the transactor as one
list. While commits are fast, the loop makes light ones itself; else their answers come back from the
commit thread with one call into the loop. Reads and procedures run in a few threads of the session's
own. A caller that waits holds no thread meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from millstream.command import Command, Operation, tidies
from millstream.embedded.loop.claim_loop import ClientTurns, TakesLots
from millstream.embedded.loop.claims import Claims
from millstream.embedded.loop.feeds import Feeds
from millstream.embedded.loop.weight import CLAIM_WEIGHT, are_light, weight_of
from millstream.embedded.session import WAITS, answer, is_plain, operation, put_for_later
from millstream.errors import MillstreamError
from millstream.log.commands import Acknowledge, Append, WaitForOffset
from millstream.queue.commands import ClaimMessages, FinishClaims, PutMessages, RenewClaims
from millstream.queue.model.message import Lot
from millstream.queue.service.consuming import claim_in_commit, route_before
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transactor import fresh
from millstream.store.sleep import Sleep, step_of, watching
from millstream.store.store import Store

T = TypeVar("T")

Done = Callable[[Any], object]
"""Is told an answer, or the exception in its place."""

DIRECT = frozenset({Append, PutMessages, Acknowledge, FinishClaims, RenewClaims})
"""Operations that consist of one commit, and leave nothing to be tidied."""

QUERY_THREADS = 4
"""Reads are short and mostly hold the interpreter's lock: more threads would only take turns."""


class _Asked(Ticket[Any], eq=False, kw_only=True):
    """A ticket with what is told its answer, or its error."""

    tell: Done
    weight: int
    """About how many bytes and records it handles."""
    command: Operation[Any] | None = None
    """None of a claim that waited for what others of its group bring."""

    @property
    def is_wanted(self) -> bool:
        """Whether an answer is still waited for."""
        return True

    def settle(self) -> None:
        """Give the answer."""
        self.tell(self.result if self.error is None else self.error)


class _Awaited(_Asked, eq=False, kw_only=True):
    """A ticket with the future of the coroutine that waits for it."""

    future: asyncio.Future[Any]

    @property
    def is_wanted(self) -> bool:
        """Not if the coroutine was cancelled."""
        return not self.future.done()

    def settle(self) -> None:
        """Give the answer; if the coroutine was cancelled, `tell` gets what was done in vain."""
        if self.future.done():
            if self.error is None:
                self.tell(self.result)
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class _Group:
    """Tickets that are handed in together, and answered together when the last has landed."""

    __slots__ = ("_landed", "_loop", "asked", "is_over")

    def __init__(self, asked: list[_Asked], loop: AsyncEmbeddedSession) -> None:
        self.asked = asked
        self.is_over = False
        """Whether all have landed while they were handed in: the loop has committed them itself."""
        self._loop = loop
        self._landed = 0
        for one in asked:
            one.on_done = self._land

    def _land(self, ticket: Ticket[Any]) -> None:
        """Called on the thread that commits, for one ticket after the other: ring once for all."""
        self._landed += 1
        if self._landed < len(self.asked):
            return
        if self._loop.is_here():
            self.is_over = True
        else:
            self._loop.call_soon(partial(self._loop.settle, self))

    def settle(self) -> None:
        """Give the answers; in the event loop. Consumers that waited hear before publishers do."""
        for one in self.asked:
            if one.command is None:
                one.settle()
        for one in self.asked:
            if one.command is not None:
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
        self._is_answering = False
        self._after_answers: list[Callable[[], object]] = []
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
        if is_plain(command):
            return await self.begin(command)  # type: ignore[arg-type]
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

    def begin_direct(
        self,
        command: Command[Any],
        done: Done,
        turns: ClientTurns | None = None,
        at_once: TakesLots | None = None,
    ) -> bool:
        """Carry out what one commit answers, without a coroutine; False if that is not known of it.

        `done` is told its answer, an exception, or a task that will have the answer. A claim that
        waits has such a task; but what a commit of this loop brings it is offered to `at_once`. If
        that takes the messages, the task's answer means nothing any more. If False, nothing was
        done. Called in the event loop.
        """
        kind = type(command)
        if kind is ClaimMessages:
            return self._claims.begin(command, done, turns, at_once)  # type: ignore[arg-type]
        if kind not in DIRECT or (kind is PutMessages and put_for_later(command)):
            return False
        self.commit_soon(command, done)  # type: ignore[arg-type]
        return True

    def return_claims(self, command: Command[Any], answer: Any) -> None:
        """Give back what a claim was answered, if its consumer has left before it could know."""
        if type(command) is ClaimMessages and isinstance(answer, list):
            self._claims.returns.give_back(command, answer)

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

    async def commit(self, command: Operation[T], unwanted: Done | None = None) -> T:
        """Carry out an operation, in one commit with all others of this turn of the event loop.

        If the caller is cancelled and it is carried out all the same, `unwanted` is told the answer.
        """
        future = self._begin_here(command, unwanted or _none)
        try:
            return await future
        except asyncio.CancelledError:
            if unwanted is not None and not future.cancelled() and future.exception() is None:
                unwanted(future.result())  # it was just there
            raise

    def begin(self, command: Operation[T]) -> asyncio.Future[T]:
        """Hand an operation in, with all others of this turn; its answer comes when it is durable."""
        return self._begin_here(command, _none)

    def _begin_here(self, command: Operation[T], unwanted: Done) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        weight = weight_of(command)
        run = operation(command)
        self._gather(_Awaited(run, tell=unwanted, weight=weight, command=command, future=future))
        return future

    def commit_soon(self, command: Operation[Any], done: Done) -> None:
        """As `commit`, without a coroutine that waits: `done` is called in the event loop."""
        weight = weight_of(command)
        self._gather(_Asked(operation(command), tell=done, weight=weight, command=command))

    def _gather(self, asked: _Asked) -> None:
        if not self._gathered:
            self._loop.call_soon(self._hand_in)
        self._gathered.append(asked)

    def _hand_in(self) -> None:
        """Submit what was gathered in this turn, in pieces that one commit can take."""
        gathered = [asked for asked in self._gathered if asked.is_wanted]
        self._gathered = []
        for claim, arrived in self._claims.standing.arriving([asked.command for asked in gathered]):
            run = partial(claim_in_commit, query=claim)
            gathered.append(_Asked(run, tell=arrived, weight=CLAIM_WEIGHT))
        size = self.limits.group_operations_max
        light = are_light([asked.weight for asked in gathered])
        for first in range(0, len(gathered), size):
            group = _Group(gathered[first : first + size], self)
            try:
                self.store.submit([*group.asked], light=light)
            except MillstreamError as error:
                for asked in group.asked:
                    asked.error = fresh(error)
                group.is_over = True
            except Exception as error:
                # Of a signal's handler: the group has its answers all the same.
                told = {"message": "while a group was committed", "exception": error}
                self._loop.call_exception_handler(told)
            if group.is_over:
                self.settle(group)

    def settle(self, group: _Group) -> None:
        """Give the answers of a group, and then do what has waited for all of them."""
        self._is_answering = True
        try:
            group.settle()
        finally:
            self._is_answering = False
            calls, self._after_answers = self._after_answers, []
            for call in calls:
                try:
                    call()
                except Exception as error:  # of one connection: the others go on, as in turns
                    told = {"message": "after answers", "exception": error}
                    self._loop.call_exception_handler(told)

    def after_answers(self, call: Callable[[], object]) -> None:
        """Call once all answers of the commit that is over are given; or soon, if none is.

        So what a connection is told by one commit goes out in one piece, and no turn of the event
        loop lies between the commit and that. Called in the event loop.
        """
        if self._is_answering:
            self._after_answers.append(call)
        else:
            self._loop.call_soon(call)

    # Reads and procedures.

    async def ask(
        self,
        question: Callable[..., T],
        *arguments: Any,
        turns: ClientTurns | None = None,
        unwanted: Done | None = None,
    ) -> T:
        """Have a thread of the pool answer, in one of the client's turns if it has such.

        If the caller is cancelled and a thread answers all the same, `unwanted` is told the answer.
        """
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return question(*arguments)  # it refuses at once
        asked = partial(question, *arguments)
        if turns is None:
            return await self._ask_thread(asked, unwanted)
        async with turns:
            return await self._ask_thread(asked, unwanted)

    async def _ask_thread(self, asked: Callable[[], T], unwanted: Done | None) -> T:
        answer = self._pool.submit(asked)
        try:
            return await asyncio.wrap_future(answer, loop=self._loop)
        except asyncio.CancelledError:
            if unwanted is not None and not answer.cancel():
                answer.add_done_callback(partial(self._tell_unwanted, unwanted))
            raise

    def _tell_unwanted(self, unwanted: Done, answer: Future[Any]) -> None:
        """Called on a thread of the pool, or in the loop, once there is an answer or an error."""
        if answer.exception() is None:
            self.call_soon(partial(_tell, unwanted, answer.result()))

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


def _tell(done: Done, found: Any) -> None:
    done(found)


def _none(found: Any) -> None:
    """Nothing is told."""


Waiting = Callable[[AsyncEmbeddedSession, Any, ClientTurns | None], Awaitable[Any]]

WAITING: dict[type[Command[Any]], Waiting] = {
    ClaimMessages: AsyncEmbeddedSession._claim,
    **dict.fromkeys(WAITS, AsyncEmbeddedSession._wait),
    WaitForOffset: AsyncEmbeddedSession._wait_for_offset,
}
"""How coroutines wait: one that is not here would hold a thread meanwhile."""
