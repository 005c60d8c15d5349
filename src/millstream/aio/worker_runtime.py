"""What coroutines do otherwise than threads when they work on messages.

The names are those of `millstream.threads.worker_runtime`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from millstream.command import AsyncSession, Command
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.errors import Closed
from millstream.jobs.crew import JobCrew
from millstream.jobs.runner import Runner
from millstream.queue.model.message import Message
from millstream.worker.crew import Crew, Report, Tasks, ThreadCrew
from millstream.worker.effects import Handled
from millstream.worker.handling import AsyncHandling, PlainHandling
from millstream.worker.options import WorkerOptions
from millstream.worker.shift import IDLE_WAIT_S, LONG_WAIT_S


class Bell:
    """Wakes the coroutine that waits for the bell; any thread may ring."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """End the wait, or the next one; nothing if the event loop has ended."""
        if threading.get_ident() == self._thread:
            self._rung.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._rung.set)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def clear(self) -> None:
        """Clear the bell."""
        self._rung.clear()

    async def wait(self, within_s: float | None) -> bool:
        """Wait until the bell rings; return False if it has not rung within the timeout."""
        try:
            async with asyncio.timeout(within_s):
                await self._rung.wait()
        except TimeoutError:
            return False
        return True


def idle_wait_s(session: AsyncSession) -> float:
    """Return how long a wait may last that ends with the worker; a wait at a server goes on after it."""
    return LONG_WAIT_S if isinstance(session, AsyncEmbeddedSession) else IDLE_WAIT_S


def senders_of(session: AsyncSession) -> int:
    """Return how many transmissions a producer has on their way: a store of this process commits one."""
    return 1 if isinstance(session, AsyncEmbeddedSession) else 2


class SideCall:
    """A call that is made beside its caller, as a task."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, Any]], *, name: str) -> None:
        self._task = asyncio.create_task(call(), name=name)
        self._is_told = False

    async def ends(self, within_s: float | None = None) -> bool:
        """Wait for the end of the call; return whether it has ended within the timeout."""
        await asyncio.wait([self._task], timeout=within_s)
        return self._task.done()

    def take_error(self) -> BaseException | None:
        """Return the error that ended the task, once. A cancellation is no error."""
        if self._is_told or self._task.cancelled():
            return None
        self._is_told = True
        return self._task.exception()

    async def wind_up(self, error: BaseException | None) -> None:
        """Wait for the end of the call, and cancel it if the caller was or is cancelled.

        `error` is what ended the caller; None for no error.
        """
        if isinstance(error, asyncio.CancelledError):
            self._task.cancel()
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        """Cancel the task, and wait for its end."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def work_through(
    work: Callable[[], Awaitable[None]], *, stop: Callable[[], None], cancel: Callable[[], None]
) -> None:
    """Work to the end; a caller that is cancelled calls `cancel`, and works on until all is given back.

    Cancelled again, it ends at once. Signals, which would call `stop`, are left to the loop's owner.
    """
    is_broken_off = False

    async def resist() -> None:
        while True:
            try:
                return await work()
            except asyncio.CancelledError:
                if is_broken_off:
                    raise
                cancel()  # the loop cancels all its tasks when it ends

    working = asyncio.create_task(resist())
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        cancel()
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            is_broken_off = True
            working.cancel()
        raise
    finally:
        await asyncio.wait([working])


def stopped_by(stop: Callable[[], None]) -> AbstractContextManager[None]:
    """Do nothing: signals, which would call `stop`, are left to the loop's owner."""
    return nullcontext()


async def uninterrupted(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do work to its end, also if the caller is cancelled meanwhile; cancelled again, it ends at once."""
    working = asyncio.create_task(work())
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        if not working.done():
            try:
                await asyncio.wait([working])
            except asyncio.CancelledError:
                working.cancel()
        working.add_done_callback(_ignore_error)  # the cancellation is raised instead
        raise


def _ignore_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def make_crew(options: WorkerOptions, session: AsyncSession, report: Report) -> Crew:
    """Tasks of the loop for a coroutine function, threads for a plain one."""
    if options.is_async:
        return Tasks(AsyncHandling(options, session.limits, session.execute), report=report)
    handling = PlainHandling(options, session.limits, execute_elsewhere(session))
    return ThreadCrew(handling, options.concurrency, report=report)


def execute_elsewhere(session: AsyncSession) -> Callable[[Command[Any]], Any]:
    """Return a function by which threads execute commands on the session of this event loop."""
    loop = asyncio.get_running_loop()

    def execute(command: Command[Any]) -> Any:
        if loop.is_closed():
            raise Closed("the worker has ended")
        return asyncio.run_coroutine_threadsafe(session.execute(command), loop).result()

    return execute


def make_job_crew(runner: Runner, size: int, session: AsyncSession, report: Report) -> Crew:
    """Tasks of this loop for coroutine functions, threads for plain functions."""

    async def handle(message: Message) -> Handled:
        return await runner.run_async(message, session.execute)

    return JobCrew(
        runner,
        size,
        clock=session.clock,
        execute=execute_elsewhere(session),
        make_tasks=lambda report: Tasks(handle, report=report),
        report=report,
    )
