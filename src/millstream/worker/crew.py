"""A crew: runs handlers, on threads or as tasks of one event loop, and tells how each ended.

It decides nothing: what becomes of a message after its handler is the worker's business. Every
message that is begun is reported once.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from millstream.command import Session, Transact
from millstream.queue.model.message import Message
from millstream.record import Seconds, to_ms
from millstream.steps import Steps

CLOSE_S = 5.0
"""How long a loop may take to end; a coroutine that resists is left behind."""

Handler = Callable[..., Any]
"""Takes a message, or a message and a transaction; a function or a coroutine function."""


class TimeLimitExceeded(Exception):
    """A handler took longer than the worker's time limit."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a handler ended; `committed` if its transaction has acknowledged the message already."""

    message: Message
    error: BaseException | None = None
    committed: bool = False


Report = Callable[[Outcome], None]


class HandlerTransaction(Steps):
    """What a handler gathers; it is committed with the acknowledgement once the handler returns."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.limits)
        self._session = session

    def commit(self, message: Message) -> None:
        """Everything gathered and the acknowledgement, in one commit; or `LeaseLost`, and none."""
        self.done(message)
        self._settle(self._session.execute(Transact(self._steps)))


class Crew(Protocol):
    """What runs handlers. `begin` does not block; `close` does not wait for them."""

    def begin(self, message: Message) -> None:
        """Run the handler on a message."""

    def abandon(self, message: Message) -> None:
        """Wait no longer for a message that was begun: its report will be ignored."""

    def close(self) -> None:
        """Begin no more."""


def make_crew(
    handler: Handler,
    session: Session,
    *,
    size: int,
    time_limit: Seconds | None,
    report: Report,
) -> Crew:
    """The crew that suits a handler."""
    if is_async(handler):
        return TaskCrew(handler, session, time_limit=time_limit, report=report)
    return ThreadCrew(handler, session, size=size, report=report)


def is_async(handler: Handler) -> bool:
    """Whether calling it gives a coroutine."""
    call = getattr(handler, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def wants_transaction(handler: Handler) -> bool:
    """Whether it asks for a transaction: by a second positional parameter without a default."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False  # something built in
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    needed = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    return len(needed) == 2


class ThreadCrew:
    """Runs a plain function on so many threads; none of them keeps the process alive."""

    def __init__(self, handler: Handler, session: Session, *, size: int, report: Report) -> None:
        self._handler = handler
        self._session = session
        self._transacts = wants_transaction(handler)
        self._report = report
        self._size = size
        self._lock = threading.Lock()
        self._abandoned: set[tuple[int, int]] = set()
        self._waiting: SimpleQueue[Message | None] = SimpleQueue()
        for _ in range(size):
            self._add_thread()

    def begin(self, message: Message) -> None:
        """Run the handler on the next thread that is free."""
        self._waiting.put(message)

    def abandon(self, message: Message) -> None:
        """A thread cannot be stopped: another takes its place, and it ends with its handler."""
        with self._lock:
            self._abandoned.add((message.claim_id, message.attempt))
            self._size += 1
        self._add_thread()

    def close(self) -> None:
        """Let the threads end when they are free."""
        for _ in range(self._size):
            self._waiting.put(None)

    def _add_thread(self) -> None:
        threading.Thread(target=self._work, name="millstream-handler", daemon=True).start()

    def _work(self) -> None:
        while (message := self._waiting.get()) is not None:
            outcome = self._handle(message)
            claim = message.claim_id, message.attempt
            with self._lock:
                if claim in self._abandoned:
                    self._abandoned.discard(claim)
                    return
            self._report(outcome)

    def _handle(self, message: Message) -> Outcome:
        try:
            if not self._transacts:
                self._handler(message)
                return Outcome(message)
            tx = HandlerTransaction(self._session)
            self._handler(message, tx)
            tx.commit(message)
            return Outcome(message, committed=True)
        except BaseException as error:  # of the handler, whatever it is: the worker decides
            return Outcome(message, error)


class TaskCrew:
    """Runs a coroutine function as tasks of one event loop, which has a thread of its own."""

    def __init__(
        self,
        handler: Handler,
        session: Session,
        *,
        time_limit: Seconds | None,
        report: Report,
    ) -> None:
        self._handler = handler
        self._session = session
        self._transacts = wants_transaction(handler)
        self._limit_s = None if time_limit is None else to_ms(time_limit) / 1000
        self._report = report
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="millstream-handlers", daemon=True)
        self._thread.start()

    def begin(self, message: Message) -> None:
        """Run the handler as a task."""
        self._loop.call_soon_threadsafe(self._add_task, message)

    def abandon(self, message: Message) -> None:
        """Nothing to do: a task over its time is cancelled, and reports that itself."""

    def close(self) -> None:
        """Cancel what still runs, and end the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._clear())
        finally:
            self._loop.close()

    async def _clear(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    def _add_task(self, message: Message) -> None:
        task = self._loop.create_task(self._work(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, message: Message) -> None:
        try:
            outcome = await self._handle(message)
        except BaseException as error:  # of the handler, whatever it is: the worker decides
            outcome = Outcome(message, error)
        self._report(outcome)

    async def _handle(self, message: Message) -> Outcome:
        tx = HandlerTransaction(self._session) if self._transacts else None
        limit = asyncio.timeout(self._limit_s)
        try:
            async with limit:
                await (self._handler(message) if tx is None else self._handler(message, tx))
        except TimeoutError as error:
            if limit.expired():
                raise TimeLimitExceeded(f"took longer than {self._limit_s:g} s") from error
            raise
        if tx is None:
            return Outcome(message)
        await asyncio.to_thread(tx.commit, message)
        return Outcome(message, committed=True)
