"""What threads do otherwise than coroutines when they work on messages.

The names are those of `millstream.aio.worker_runtime`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from typing import Any

from millstream.command import Command, Session
from millstream.jobs.crew import JobCrew
from millstream.jobs.runner import Runner
from millstream.queue.model.message import Message
from millstream.store.wait_breaker import WaitBreaker, WaitBroken
from millstream.worker.crew import Crew, LoopCrew, Report, ThreadCrew
from millstream.worker.effects import Handled
from millstream.worker.handling import AsyncHandling, PlainHandling
from millstream.worker.options import WorkerOptions
from millstream.worker.shift import IDLE_WAIT_S, LONG_WAIT_S
from millstream.worker.stop_signals import stopped_by_signals

TURN_S = 0.5
"""How long a thread sleeps without a look: a signal that comes just before the main thread falls
asleep does not wake it, and its handler runs with the next turn."""


class Bell:
    """Wakes the thread that waits for the bell; any thread may ring, also from a signal's handler."""

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """End the wait, or the next one."""
        self._rung.put(None)

    def clear(self) -> None:
        """Remove the rings that no wait has taken yet."""
        while not self._rung.empty():
            self._rung.get_nowait()

    def wait(self, within_s: float | None) -> bool:
        """Wait until the bell rings; return False if it has not rung within the timeout."""
        left_s = math.inf if within_s is None else max(0.0, within_s)
        while True:
            try:
                self._rung.get(timeout=min(left_s, TURN_S))
            except Empty:
                left_s -= TURN_S
                if left_s <= 0:
                    return False
            else:
                return True


def idle_wait_s(session: Session) -> float:
    """Return how long a wait may last that ends with the worker; a wait at a server goes on after it."""
    from millstream.embedded.session import EmbeddedSession  # late: it loads the database

    return LONG_WAIT_S if isinstance(session, EmbeddedSession) else IDLE_WAIT_S


def senders_of(session: Session) -> int:
    """Return how many transmissions a producer has on their way: a store of this process commits one."""
    from millstream.embedded.session import EmbeddedSession  # late: it loads the database

    return 1 if isinstance(session, EmbeddedSession) else 2


class SideCall:
    """A call that is made beside its caller, on a thread that does not keep the process alive."""

    def __init__(self, call: Callable[[], Any], *, name: str) -> None:
        self._breaker = WaitBreaker()
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._breaker:
                self._call()
        except WaitBroken:
            pass  # by `close`
        except BaseException as error:  # told by `take_error`
            self._error = error

    def ends(self, within_s: float | None = None) -> bool:
        """Wait for the end of the call; return whether it has ended within the timeout."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def take_error(self) -> BaseException | None:
        """Return the error that ended the call, once."""
        error, self._error = self._error, None
        return error

    def wind_up(self, error: BaseException | None) -> None:
        """Wait for the end of the call, whatever ended the caller."""
        self.ends()

    def close(self) -> None:
        """Break off the wait of the call, and wait for its end: a thread cannot be cancelled."""
        self._breaker.end()
        self.ends()


def work_through(
    work: Callable[[], None], *, stop: Callable[[], None], cancel: Callable[[], None]
) -> None:
    """Work to the end. In the main thread SIGTERM and SIGINT call `stop`; a thread is not cancelled."""
    with stopped_by_signals(stop):
        work()


def stopped_by(stop: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `stop` on SIGTERM and SIGINT, in the main thread, as long as the block lasts."""
    return stopped_by_signals(stop)


def uninterrupted(work: Callable[[], None]) -> None:
    """Do work to its end: a thread is not cancelled."""
    work()


def make_crew(options: WorkerOptions, session: Session, report: Report) -> Crew:
    """Tasks of a loop on a thread of its own for a coroutine function, threads for a plain one."""
    if not options.is_async:
        handling = PlainHandling(options, session.limits, session.execute)
        return ThreadCrew(handling, options.concurrency, report=report)
    execute = execute_elsewhere(session)
    return LoopCrew(AsyncHandling(options, session.limits, execute), report=report)


def execute_elsewhere(session: Session) -> Callable[[Command[Any]], Awaitable[Any]]:
    """Return a function by which coroutines execute commands; a thread waits for each answer."""
    return lambda command: asyncio.to_thread(session.execute, command)


def make_job_crew(runner: Runner, size: int, session: Session, report: Report) -> Crew:
    """Tasks of a loop on a thread of its own for coroutine functions, threads for plain functions."""
    execute = execute_elsewhere(session)

    async def handle(message: Message) -> Handled:
        return await runner.run_async(message, execute)

    return JobCrew(
        runner,
        size,
        clock=session.clock,
        execute=session.execute,
        make_tasks=lambda report: LoopCrew(handle, report=report),
        report=report,
    )
