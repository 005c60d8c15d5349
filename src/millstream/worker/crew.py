"""Crews run handlers, on threads or as tasks of an event loop, and report how each ended.

They decide nothing: the shift decides what happens to a message after its handler. Every begun
message is reported once.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from millstream.command import Transact
from millstream.limits import Limits
from millstream.queue.model.message import Message
from millstream.worker.effects import Handled
from millstream.worker.handler import HandlerTransaction, wants_transaction
from millstream.worker.leases import ClaimKey, claim_of
from millstream.worker.options import WorkerOptions
from millstream.worker.shift import TimeLimitExceeded

CLOSE_S = 5.0
"""How long a loop may take to end; a coroutine that ignores its cancellation is left behind."""

Report = Callable[[Handled], None]
Commit = Callable[[Transact], list[Any]]
AsyncCommit = Callable[[Transact], Awaitable[list[Any]]]


class ThreadCrew:
    """Runs a plain function on several threads, which do not keep the process alive."""

    def __init__(
        self, options: WorkerOptions, limits: Limits, *, commit: Commit, report: Report
    ) -> None:
        self._handler: Callable[..., Any] = options.handler
        self._transacts = wants_transaction(options.handler)
        self._limits = limits
        self._commit = commit
        self._report = report
        self._size = options.concurrency
        self._is_closed = False
        self._lock = threading.Lock()
        self._abandoned: set[ClaimKey] = set()
        self._waiting: SimpleQueue[Message | None] = SimpleQueue()
        for _ in range(self._size):
            self._add_thread()

    def begin(self, message: Message) -> None:
        """Run the handler on the next free thread."""
        self._waiting.put(message)

    def abandon(self, message: Message) -> None:
        """Replace a thread that cannot be stopped; the old thread ends with its handler."""
        with self._lock:
            self._abandoned.add(claim_of(message))
            self._size += 1
        self._add_thread()

    def close(self) -> None:
        """Let the threads end when they are free; uncommitted results are dropped."""
        self._is_closed = True
        for _ in range(self._size):
            self._waiting.put(None)

    def _add_thread(self) -> None:
        threading.Thread(target=self._work, name="millstream-handler", daemon=True).start()

    def _work(self) -> None:
        while (message := self._waiting.get()) is not None:
            outcome = self._handle(message)
            with self._lock:
                if claim_of(message) in self._abandoned:
                    self._abandoned.discard(claim_of(message))
                    return
            self._report(outcome)

    def _handle(self, message: Message) -> Handled:
        try:
            if not self._transacts:
                _refuse_coroutine(self._handler(message))
                return Handled(message)
            tx = HandlerTransaction(self._limits)
            _refuse_coroutine(self._handler(message, tx))
            with self._lock:
                if self._is_closed or claim_of(message) in self._abandoned:
                    return Handled(message)  # dropped, with its steps
            tx.committed(self._commit(tx.closing(message)))
            return Handled(message, committed=True)
        except BaseException as error:  # any error of the handler: the shift decides
            return Handled(message, error)


class Tasks:
    """Runs a coroutine function as tasks of the calling event loop."""

    def __init__(
        self, options: WorkerOptions, limits: Limits, *, commit: AsyncCommit, report: Report
    ) -> None:
        self._handler: Callable[..., Any] = options.handler
        self._transacts = wants_transaction(options.handler)
        self._limits = limits
        self._commit = commit
        self._limit_s = options.limit_s
        self._report = report
        self._tasks: dict[ClaimKey, asyncio.Task[Handled]] = {}

    def begin(self, message: Message) -> None:
        """Run the handler as a task."""
        task = asyncio.create_task(self._work(message))
        self._tasks[claim_of(message)] = task
        task.add_done_callback(partial(self._ended, message))

    def abandon(self, message: Message) -> None:
        """Cancel the task, which reports its own end."""
        task = self._tasks.get(claim_of(message))
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Cancel running tasks."""
        for task in self._tasks.values():
            task.cancel()

    async def ended(self) -> None:
        """Wait until no task is left."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _ended(self, message: Message, task: asyncio.Task[Handled]) -> None:
        del self._tasks[claim_of(message)]
        if task.cancelled():  # cancelled before it had begun
            self._report(Handled(message, asyncio.CancelledError()))
        else:
            self._report(task.result())

    async def _work(self, message: Message) -> Handled:
        try:
            return await self._handle(message)
        except BaseException as error:  # any error of the handler: the shift decides
            return Handled(message, error)

    async def _handle(self, message: Message) -> Handled:
        tx = HandlerTransaction(self._limits) if self._transacts else None
        limit = asyncio.timeout(self._limit_s)
        try:
            async with limit:
                await (self._handler(message) if tx is None else self._handler(message, tx))
        except TimeoutError as error:
            if limit.expired():
                raise TimeLimitExceeded(f"took longer than {self._limit_s:g} s") from error
            raise
        if tx is None:
            return Handled(message)
        tx.committed(await self._commit(tx.closing(message)))
        return Handled(message, committed=True)


class LoopCrew:
    """Runs a coroutine function as tasks of an event loop on a separate thread."""

    def __init__(
        self, options: WorkerOptions, limits: Limits, *, commit: Commit, report: Report
    ) -> None:
        self._tasks = Tasks(
            options, limits, commit=lambda steps: asyncio.to_thread(commit, steps), report=report
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="millstream-handlers", daemon=True)
        self._thread.start()

    def begin(self, message: Message) -> None:
        """Run the handler as a task."""
        self._loop.call_soon_threadsafe(self._tasks.begin, message)

    def abandon(self, message: Message) -> None:
        """Cancel the task."""
        self._loop.call_soon_threadsafe(self._tasks.abandon, message)

    def close(self) -> None:
        """Cancel running tasks, and end the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._clear())
        finally:
            self._loop.close()

    async def _clear(self) -> None:
        self._tasks.close()
        await self._tasks.ended()
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


Crew = ThreadCrew | Tasks | LoopCrew
"""Runs handlers. `begin` does not block; `close` does not wait for handlers."""


def _refuse_coroutine(answer: Any) -> None:
    """Refuse the coroutine that a plain function returned: nothing was executed."""
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError("the handler returned a coroutine: make the handler itself `async def`")
