"""Crews run handlers, on threads or as tasks of an event loop, and report how each ended.

They decide nothing: the shift decides what happens to a message after its handler. Every begun
message is reported once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from millstream.queue.model.message import Message
from millstream.worker.effects import Handled
from millstream.worker.leases import ClaimKey, claim_of

CLOSE_S = 5.0
"""How long a loop may take to end; a coroutine that ignores its cancellation is left behind."""

Report = Callable[[Handled], None]
Handle = Callable[[Message, Callable[[], bool]], Handled]
"""Runs a handler on a message, and returns how it ended. The function that it gets says whether the
message was abandoned. Steps of an abandoned message are dropped."""
AsyncHandle = Callable[[Message], Awaitable[Handled]]


class ThreadCrew:
    """Runs plain functions on several threads, which do not keep the process alive."""

    def __init__(self, handle: Handle, size: int, *, report: Report) -> None:
        self._handle = handle
        self._report = report
        self._size = size
        self._is_closed = False
        self._lock = threading.Lock()
        self._busy: set[ClaimKey] = set()
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

    def drop(self, message: Message) -> bool:
        """Abandon a message; False if its handler does not run, because it has ended."""
        with self._lock:
            if claim_of(message) not in self._busy:
                return False
        self.abandon(message)
        return True

    def close(self) -> None:
        """Let the threads end when they are free; uncommitted results are dropped."""
        self._is_closed = True
        for _ in range(self._size):
            self._waiting.put(None)

    def _add_thread(self) -> None:
        threading.Thread(target=self._work, name="millstream-handler", daemon=True).start()

    def _work(self) -> None:
        while (message := self._waiting.get()) is not None:
            claim = claim_of(message)
            self._busy.add(claim)
            outcome = self._run(message)
            with self._lock:
                self._busy.discard(claim)
                if claim in self._abandoned:
                    self._abandoned.discard(claim)
                    return
            self._report(outcome)

    def _run(self, message: Message) -> Handled:
        try:
            return self._handle(message, partial(self._is_dropped, message))
        except BaseException as error:  # any error of the handler: the shift decides
            return Handled(message, error)

    def _is_dropped(self, message: Message) -> bool:
        with self._lock:
            return self._is_closed or claim_of(message) in self._abandoned


class Tasks:
    """Runs coroutine functions as tasks of the calling event loop."""

    def __init__(self, handle: AsyncHandle, *, report: Report) -> None:
        self._handle = handle
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


class LoopCrew:
    """Runs coroutine functions as tasks of an event loop on a separate thread."""

    def __init__(self, handle: AsyncHandle, *, report: Report) -> None:
        self._tasks = Tasks(handle, report=report)
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


class Crew(Protocol):
    """Runs handlers. `begin` does not block; `close` does not wait for handlers."""

    def begin(self, message: Message) -> None:
        """Run the handler of a message."""

    def abandon(self, message: Message) -> None:
        """Cancel a handler, or stop waiting for a handler that cannot be cancelled."""

    def close(self) -> None:
        """Cancel handlers, or let them end alone."""
