"""Crews run handlers, on threads or as tasks of an event loop, and report how each ended.

They decide nothing: the shift decides what happens to a message after its handler. Every begun
message is reported once. The report returns the message that the free handler begins next: to wake
the thread of the worker for each message took longer than a short handler itself.
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

CLOSE_S = 5.0
"""How long a loop may take to end; a coroutine that ignores its cancellation is left behind."""

Report = Callable[[Handled], Message | None]
"""Notes how a handler ended, and returns the message to begin next, if one waits."""
IsDropped = Callable[[Message], bool]
"""Says whether a message was abandoned: the steps of an abandoned message are dropped."""
Handle = Callable[[Message, IsDropped], Handled]
"""Runs a handler on a message, and returns how it ended."""
AsyncHandle = Callable[[Message], Awaitable[Handled]]


class ThreadCrew:
    """Runs plain functions on several threads, which do not keep the process alive."""

    def __init__(self, handle: Handle, size: int, *, report: Report) -> None:
        self._handle = handle
        self._report = report
        self._size = size
        self._is_closed = False
        self._lock = threading.Lock()
        self._busy: set[int] = set()
        self._abandoned: set[int] = set()
        """Messages by `id`: in work, and in work for nothing."""
        self._waiting: SimpleQueue[Message | None] = SimpleQueue()
        for _ in range(self._size):
            self._add_thread()

    def begin(self, message: Message) -> None:
        """Run the handler on the next free thread."""
        self._waiting.put(message)

    def abandon(self, message: Message) -> None:
        """Replace a thread that cannot be stopped; the old thread ends with its handler."""
        with self._lock:
            self._abandoned.add(id(message))
            self._size += 1
        self._add_thread()

    def drop(self, message: Message) -> bool:
        """Abandon a message; False if its handler does not run, because it has ended."""
        with self._lock:
            if id(message) not in self._busy:
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
        message = self._waiting.get()
        while message is not None:
            key = id(message)
            self._busy.add(key)
            outcome = self._run(message)
            with self._lock:
                self._busy.discard(key)
                if key in self._abandoned:
                    self._abandoned.discard(key)
                    return
            message = self._report(outcome) or self._waiting.get()

    def _run(self, message: Message) -> Handled:
        try:
            return self._handle(message, self._is_dropped)
        except BaseException as error:  # any error of the handler: the shift decides
            return Handled(message, error)

    def _is_dropped(self, message: Message) -> bool:
        with self._lock:
            return self._is_closed or id(message) in self._abandoned


class Tasks:
    """Runs coroutine functions as tasks of the calling event loop."""

    def __init__(self, handle: AsyncHandle, *, report: Report) -> None:
        self._handle = handle
        self._report = report
        self._tasks: dict[int, asyncio.Task[Handled]] = {}
        """The task of each message, by its `id`."""

    def begin(self, message: Message) -> None:
        """Run the handler as a task."""
        task = asyncio.create_task(self._work(message))
        self._tasks[id(message)] = task
        task.add_done_callback(partial(self._ended, message))

    def abandon(self, message: Message) -> None:
        """Cancel the task, which reports its own end."""
        task = self._tasks.get(id(message))
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
        del self._tasks[id(message)]
        is_cancelled = task.cancelled()  # before it had begun
        outcome = Handled(message, asyncio.CancelledError()) if is_cancelled else task.result()
        following = self._report(outcome)
        if following is not None:
            self.begin(following)

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
