"""The embedded session for coroutines: answers commands from a store in this process.

Operations of the same turn of the event loop go to the transactor as one list. While commits are
fast, the loop commits light operations itself; else their answers return from the commit thread
with a single call into the loop. Reads and procedures run in a few threads of the session. A
waiting caller holds no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from millstream.command import Command, Operation, tidies
from millstream.embedded.loop.claim_loop import ClientTurns, TakesLots, Turn
from millstream.embedded.loop.feeds import Feeds
from millstream.embedded.loop.loop_claims import Claims
from millstream.embedded.loop.loop_turn import LoopTurn, LoopTurns
from millstream.embedded.loop.weight import CLAIM_WEIGHT, are_light, weight_of
from millstream.embedded.rules import (
    SINGLE_COMMITS,
    WAITS,
    answer,
    operation,
    put_for_later,
)
from millstream.errors import MillstreamError
from millstream.interrupts import deferred
from millstream.log.commands import Acknowledge, Append, WaitForOffset
from millstream.queue.commands import (
    ClaimMessages,
    FinishClaims,
    PutFresh,
    PutMessages,
    RenewClaims,
    ReturnClaims,
)
from millstream.queue.model.message import Lot
from millstream.queue.service.backlog import route_before
from millstream.queue.service.claims import claim_in_commit
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transactor import fresh
from millstream.store.sleep import Sleep, step_of, watching
from millstream.store.store import Store

T = TypeVar("T")

Done = Callable[[Any], object]
"""Receives an answer, or the exception in its place."""

DIRECT = frozenset({Append, PutMessages, PutFresh, Acknowledge, FinishClaims, RenewClaims})
"""Operations that consist of a single commit without clean-up."""

QUERY_THREADS = 4
"""Reads are short and mostly hold the interpreter's lock, so more threads would not run in
parallel.
"""


class _PendingOperation(Ticket[Any], eq=False, kw_only=True):
    """A ticket with a callback for its answer or error."""

    tell: Done
    weight: int
    """The approximate number of bytes and records it handles."""
    command: Operation[Any] | None = None
    """None for a waiting claim that is made by the commit of other operations."""

    future: asyncio.Future[Any] | None = None
    """The future of a waiting coroutine, which is done early if the coroutine is cancelled."""

    def settle(self) -> None:
        """Deliver the answer."""
        self.tell(self.result if self.error is None else self.error)


class _AwaitedOperation(_PendingOperation, eq=False, kw_only=True):
    """A ticket with the future of the waiting coroutine."""

    future: asyncio.Future[Any]

    def settle(self) -> None:
        """Deliver the answer; if the coroutine was cancelled, `tell` gets the unused answer."""
        if self.future.done():
            if self.error is None:
                self.tell(self.result)
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class _Group:
    """Tickets that are submitted together and answered together, when the last is committed."""

    __slots__ = ("_landed", "_loop", "is_over", "tickets")

    def __init__(self, tickets: list[_PendingOperation], loop: AsyncEmbeddedSession) -> None:
        self.tickets = tickets
        self.is_over = False
        """Whether all tickets were committed during the submission, by the loop itself."""
        self._loop = loop
        self._landed = 0
        for ticket in tickets:
            ticket.on_done = self._land

    def has_unwanted_claims(self) -> bool:
        """Return whether a ticket may claim messages for a caller who has left, or returns some."""
        return any(
            ticket.command is None
            or type(ticket.command) is ReturnClaims
            or (ticket.future is not None and ticket.future.cancelled())
            for ticket in self.tickets
        )

    def _land(self, ticket: Ticket[Any]) -> None:
        """Count a committed ticket, and wake the loop after the last; called on the committing
        thread.
        """
        self._landed += 1
        if self._landed < len(self.tickets):
            return
        if self._loop.is_here():
            self.is_over = True
        else:
            self._loop.call_soon(partial(self._loop.settle, self))

    def settle(self) -> None:
        """Deliver the answers, in the event loop: to waiting consumers first, then to publishers."""
        for ticket in self.tickets:
            if ticket.command is None:
                ticket.settle()
        for ticket in self.tickets:
            if ticket.command is not None:
                ticket.settle()


class AsyncEmbeddedSession:
    """Answers the coroutines of the event loop that runs when the session is made."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.limits = store.limits
        self.clock = store.clock
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="millstream-query")
        self._gathered: list[_PendingOperation] = []
        self._is_answering = False
        self._after_answers: list[Callable[[], object]] = []
        self._closing: asyncio.Future[None] | None = None
        self._on_their_way: set[object] = set()
        """Groups without an answer, and answers of threads that a cancelled caller does not want."""
        self._arrived = asyncio.Event()
        """Set when one of them has arrived."""
        self._claims = Claims(store, self)
        self._turns = LoopTurns(store, self.call_soon)
        self.feeds = Feeds(self)
        """The feeds of followed logs: a single tail per log, for all waits and listeners."""

    async def execute(self, command: Command[T], turns: ClientTurns | None = None) -> T:
        """Answer a command; its writes are durable on return.

        If the caller is cancelled, the command may still run; other callers are not affected. A
        waiting command takes one of the client's `turns` for each look.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a store that was opened in one event loop is used in another")
        if self._turns.holder is not None and command.writes:
            self._turns.refuse_holder()
        if type(command) in SINGLE_COMMITS:
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
            waited: T = await wait(self, command, turns)
            return waited
        return await self.ask(answer, self.store, command)

    def begin_direct(
        self,
        command: Command[Any],
        done: Done,
        turns: ClientTurns | None = None,
        receive: TakesLots | None = None,
    ) -> bool:
        """Start a command that a single commit answers, without a coroutine; return False for
        others.

        `done` gets the answer, an exception, or a task that will have the answer. A waiting claim
        has a task; messages that a commit of this loop claims for it are offered to `receive`
        first, and if that takes them, the task's answer is void. False means that nothing was done.
        Called in the event loop.
        """
        kind = type(command)
        if kind is ClaimMessages:
            return self._claims.begin(command, done, turns, receive)  # type: ignore[arg-type]
        if kind not in DIRECT or (kind is PutMessages and put_for_later(command)):
            return False
        self.commit_soon(command, done)  # type: ignore[arg-type]
        return True

    def return_claims(self, command: Command[Any], answer: Any) -> None:
        """Give back the messages of a claim whose consumer left before receiving them."""
        if type(command) is ClaimMessages and isinstance(answer, list):
            self._claims.returns.give_back(command, answer)

    async def begin_turn(self, timeout_s: float) -> LoopTurn:
        """Take the writer's turn for an interactive transaction."""
        return await self._turns.begin(timeout_s)

    async def close(self) -> None:
        """Close the store; waiting calls get `Closed`.

        Before, messages are given back that the claim of a cancelled caller takes.
        """
        self._turns.refuse_holder()
        try:
            for _ in range(2):  # first the claims on their way, then the returns of their messages
                await self._arrivals()
        finally:  # also if the caller is cancelled
            if self._closing is None:
                self._closing = self._loop.run_in_executor(self._pool, self.store.close)
                self._closing.add_done_callback(self._closed)
        await asyncio.shield(self._closing)

    async def _arrivals(self) -> None:
        """Wait for claims and returns of cancelled callers on their way, but not for what follows."""
        await asyncio.sleep(0)  # operations of this turn of the loop are handed in first
        awaited = {
            call
            for call in self._on_their_way
            if not isinstance(call, _Group) or call.has_unwanted_claims()
        }
        while not awaited.isdisjoint(self._on_their_way):
            self._arrived.clear()
            await self._arrived.wait()

    def _closed(self, closing: asyncio.Future[None]) -> None:
        if closing.cancelled() or closing.exception() is not None:
            self._closing = None
        else:
            self._pool.shutdown(wait=False)
            self._turns.close()

    async def commit(self, command: Operation[T], unwanted: Done | None = None) -> T:
        """Commit an operation together with all others of this turn of the event loop.

        If the caller is cancelled and the operation runs nevertheless, `unwanted` gets the answer.
        """
        future = self._begin_here(command, unwanted or _none)
        try:
            return await future
        except asyncio.CancelledError:
            if unwanted is not None and not future.cancelled() and future.exception() is None:
                unwanted(future.result())  # the answer came in the same turn
            raise

    def begin(self, command: Operation[T]) -> asyncio.Future[T]:
        """Submit an operation with the operations of this turn; the answer comes when it is durable."""
        return self._begin_here(command, _none)

    def _begin_here(self, command: Operation[T], unwanted: Done) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        weight = weight_of(command)
        run = operation(command)
        self._gather(
            _AwaitedOperation(run, tell=unwanted, weight=weight, command=command, future=future)
        )
        return future

    def commit_soon(self, command: Operation[Any], done: Done) -> None:
        """Commit as `commit` does, without a coroutine: `done` is called in the event loop."""
        weight = weight_of(command)
        self._gather(
            _PendingOperation(operation(command), tell=done, weight=weight, command=command)
        )

    def _gather(self, ticket: _PendingOperation) -> None:
        if not self._gathered:
            self._loop.call_soon(self._hand_in)
        self._gathered.append(ticket)

    def _hand_in(self) -> None:
        with deferred:  # a handler that raises must keep no caller from the answer
            self._submit_gathered()

    def _submit_gathered(self) -> None:
        """Submit the operations of this turn, in groups that fit into a commit."""
        gathered = [
            ticket
            for ticket in self._gathered
            if (future := ticket.future) is None or not future.done()
        ]
        self._gathered = []
        for claim, arrived in self._claims.lines.claims_for(gathered):
            run = partial(claim_in_commit, query=claim)
            gathered.append(_PendingOperation(run, tell=arrived, weight=CLAIM_WEIGHT))
        size = self.limits.group_operations_max
        light = are_light([ticket.weight for ticket in gathered])
        for first in range(0, len(gathered), size):
            group = _Group(gathered[first : first + size], self)
            self._on_their_way.add(group)
            try:
                self.store.submit([*group.tickets], light=light)
            except MillstreamError as error:
                for ticket in group.tickets:
                    ticket.error = fresh(error)
                group.is_over = True
            if group.is_over:
                self.settle(group)

    def settle(self, group: _Group) -> None:
        """Deliver the answers of a group, then make the calls that waited for them."""
        self._is_answering = True
        try:
            group.settle()
        finally:
            self._is_answering = False
            self._arrive(group)
            calls, self._after_answers = self._after_answers, []
            for call in calls:
                try:
                    call()
                except Exception as error:  # of a single connection: the calls of others go on
                    context = {"message": "after answers", "exception": error}
                    self._loop.call_exception_handler(context)

    def after_answers(self, call: Callable[[], object]) -> None:
        """Call after all answers of the current commit are delivered, or soon if no commit is
        answered.

        So a connection sends all its answers of a commit in one piece, without another turn of the
        event loop in between. Called in the event loop.
        """
        if self._is_answering:
            self._after_answers.append(call)
        else:
            self._loop.call_soon(call)

    async def ask(
        self,
        question: Callable[..., T],
        *arguments: Any,
        turns: Turn | None = None,
        unwanted: Done | None = None,
    ) -> T:
        """Run a function in a thread of the pool, in a turn of the client if `turns` is given.

        If the caller is cancelled and a thread answers nevertheless, `unwanted` gets the answer.
        """
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return question(*arguments)  # a closed store refuses
        call = partial(question, *arguments)
        if turns is None:
            return await self._ask_thread(call, unwanted)
        async with turns:
            return await self._ask_thread(call, unwanted)

    async def _ask_thread(self, call: Callable[[], T], unwanted: Done | None) -> T:
        answer = self._pool.submit(call)
        try:
            return await asyncio.wrap_future(answer, loop=self._loop)
        except asyncio.CancelledError:
            if unwanted is not None and not answer.cancel():
                self._on_their_way.add(answer)
                answer.add_done_callback(
                    lambda answer: self.call_soon(partial(self._tell_unwanted, unwanted, answer))
                )
            raise

    def _tell_unwanted(self, unwanted: Done, answer: Future[Any]) -> None:
        """Deliver an unneeded answer, in the loop."""
        if answer.exception() is None:
            unwanted(answer.result())
        self._arrive(answer)

    def _arrive(self, arrived: object) -> None:
        self._on_their_way.discard(arrived)
        self._arrived.set()

    async def _claim(self, command: ClaimMessages, turns: ClientTurns | None) -> list[Lot]:
        return await self._claims.claim(command, turns)

    async def _wait_for_offset(self, command: WaitForOffset, turns: ClientTurns | None) -> bool:
        """Wait at the log's feed, which takes no turn of a client."""
        return await self.feeds.wait(
            command.log, command.offset, command.timeout_ms, command.log_id
        )

    async def _wait(self, command: Command[Any], turns: ClientTurns | None) -> Any:
        """Wait as `sleep.wait` does, without a thread while asleep."""
        waiting = WAITS[type(command)](self.store, command)  # type: ignore[index]
        while isinstance(step := await self.ask(step_of, waiting, turns=turns), Sleep):
            changed = asyncio.Event()
            with watching(self.store.watch, step, partial(self._wake, changed)):
                if not await self.ask(step.is_over, turns=turns):
                    try:
                        async with asyncio.timeout(step.seconds):
                            await changed.wait()
                    except TimeoutError:
                        pass  # the wait reads its own clock
        return step.answer

    def _wake(self, changed: asyncio.Event) -> None:
        if not changed.is_set():
            self.call_soon(changed.set)

    def is_here(self) -> bool:
        """Return whether the event loop itself is calling, and not another thread."""
        return asyncio._get_running_loop() is self._loop

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call in the event loop; from any thread. After the end of the loop the call is dropped."""
        try:
            if self.is_here():
                self._loop.call_soon(callback)  # the loop is awake
            else:
                self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


def _none(answer: Any) -> None:
    """Ignore the answer."""


Waiting = Callable[[AsyncEmbeddedSession, Any, ClientTurns | None], Awaitable[Any]]

WAITING: dict[type[Command[Any]], Waiting] = {
    ClaimMessages: AsyncEmbeddedSession._claim,
    **dict.fromkeys(WAITS, AsyncEmbeddedSession._wait),
    WaitForOffset: AsyncEmbeddedSession._wait_for_offset,
}
"""How coroutines wait. Other commands would hold a thread while waiting."""
