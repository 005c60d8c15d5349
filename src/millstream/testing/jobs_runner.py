"""Jobs in tests: a runner steps jobs on a simulated clock, in the thread of the test.

The runner binds the jobs to a store in memory for the length of a `with` block. No worker runs, so
nothing happens between two calls of the test. Timeouts of plain functions are not enforced, because
the function runs in the thread of the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime
from math import ceil
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from millstream.command import Command, Operation, Procedure, Session
from millstream.errors import InvalidInput, NotFound
from millstream.jobs.reports import JobFinished, JobReport
from millstream.jobs.runner import Runner
from millstream.jobs.schedule import QUEUE as SCHEDULES
from millstream.queue.model.message import Message
from millstream.record import Seconds, moment, to_ms, wall_ms_of
from millstream.testing.clock import SimulatedClock
from millstream.testing.store import memory_store
from millstream.threads.database import Millstream
from millstream.threads.jobs import Jobs
from millstream.threads.queue import Queue
from millstream.worker.effects import Handled

T = TypeVar("T")

JOBS_MAX = 100_000
"""The most jobs per call: a job that puts itself again would never end."""

PEEKED_MAX = 10_000
"""Delayed jobs of a queue among which `advance` looks for the next due time."""


class JobsRunner:
    """Runs the jobs of a test, one after the other."""

    def __init__(self, jobs: Jobs, *, clock: SimulatedClock | None = None) -> None:
        if not isinstance(jobs, Jobs):
            raise InvalidInput(
                f"the runner takes Jobs of `millstream`, not {type(jobs)!r:.100}; their tasks may be "
                "coroutine functions, too"
            )
        self._jobs = jobs
        self.clock = clock or SimulatedClock()
        """The clock of the store. `advance` of the runner moves it and runs jobs."""
        self.ms: Millstream = memory_store(clock=self.clock)
        """The store in memory."""
        self.is_running = False
        """Whether jobs run at the moment: a job may call the code under test."""
        self._reports: list[JobFinished] = []
        self._bound = ExitStack()

    def __enter__(self) -> Self:
        session: Any = StillSession(self.ms.session)
        self._bound.enter_context(self._jobs.bound_to(Millstream(session)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bound.close()
        self.ms.close()

    def run_due(self, *, raise_errors: bool = False) -> list[JobFinished]:
        """Fire due schedules, run due jobs and the jobs that they put; return a report of each.

        With `raise_errors`, the first error of a task is raised, after its attempt has ended.
        """
        if self.is_running:
            raise InvalidInput("jobs run already: run_due() is for tests, not for a task")
        self.is_running, self._reports = True, []
        try:
            self._run_all(raise_errors=raise_errors)
        finally:
            self.is_running = False
        return self._reports

    def advance(self, duration: Seconds, *, raise_errors: bool = False) -> list[JobFinished]:
        """Let time pass, and run each job and each schedule at the time at which it is due."""
        until_ms = self.clock.wall_ms() + to_ms(duration)
        reports = self.run_due(raise_errors=raise_errors)
        while (due_ms := self._next_due_ms()) is not None and due_ms <= until_ms:
            self.clock.advance(max(1, due_ms - self.clock.wall_ms()) / 1000)
            reports += self.run_due(raise_errors=raise_errors)
        self.clock.advance(max(0, until_ms - self.clock.wall_ms()) / 1000)
        return reports

    def _run_all(self, *, raise_errors: bool) -> None:
        limits = self.ms.session.limits
        runner = Runner(self._jobs.tasks, limits, self.clock, on_job=self._add_report)
        self._jobs.schedules.sync()
        while self._jobs.schedules.fire():
            pass
        for _ in range(JOBS_MAX):
            message = self._next_message()
            if message is None:
                return
            self._run(runner, message, raise_errors=raise_errors)
        raise InvalidInput(f"{JOBS_MAX:,} jobs ran, and jobs are still due: does a job put itself?")

    def _run(self, runner: Runner, message: Message, *, raise_errors: bool) -> None:
        execute = self.ms.session.execute
        if runner.is_async(message):

            async def execute_there(command: Command[Any]) -> Any:
                return execute(command)

            # A test may run in an event loop of its own, so the coroutine gets a thread.
            with ThreadPoolExecutor(1) as thread:
                running = runner.run_async(message, execute_there)
                outcome = thread.submit(asyncio.run, running).result()
        else:
            outcome = runner.run(message, execute, lambda message: False)
        self._finish(outcome)
        if raise_errors and outcome.error is not None:
            raise outcome.error

    def _finish(self, outcome: Handled) -> None:
        message, verdict = outcome.message, outcome.verdict
        queue = self.ms.queue(message.queue)
        if outcome.committed:
            return
        if verdict is None:
            queue.ack(message, result=outcome.result)
        elif verdict.how == "fail":
            queue.fail(message, reason=verdict.reason, error=verdict.error)
        else:
            delay_s = verdict.delay_s
            queue.nack(message, delay=delay_s, reason=verdict.reason, error=verdict.error)

    def _next_message(self) -> Message | None:
        for queue in self._queues():
            try:
                claimed = queue.claim(1)
            except NotFound:
                continue
            if claimed:
                return claimed[0]
        return None

    def _next_due_ms(self) -> int | None:
        """Return the time at which the next job or schedule is due; None if nothing is delayed."""
        due: list[datetime] = []
        for queue in [*self._queues(), self.ms.queue(SCHEDULES)]:
            try:
                delayed = queue.peek(PEEKED_MAX, state="delayed")
                pause_ms = self._pause_ms(queue)
            except NotFound:
                continue
            due += [message.until for message in delayed if message.until is not None]
            if pause_ms is not None:
                due.append(moment(self.clock.wall_ms() + pause_ms))
        return wall_ms_of(min(due)) if due else None

    def _pause_ms(self, queue: Queue) -> int | None:
        """Return the time after which a rate per key allows a waiting job; None without a rate."""
        info = queue.info()
        if not ((info.available or info.delayed) and info.spec.group_by):
            return None
        rates = [limit.rate for limit in queue.group_limits().values()]
        highest = max([info.spec.group_rate, *(rate for rate in rates if rate)])
        return ceil(1000 / highest) + 1 if highest else None

    def _queues(self) -> list[Queue]:
        names = {task.options.queue for task in self._jobs.tasks.values()}
        return [self.ms.queue(name) for name in sorted(names)]

    def _add_report(self, report: JobReport) -> None:
        if isinstance(report, JobFinished):
            self._reports.append(report)


class StillSession:
    """A session whose waits end at once, because no job runs while a test waits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waited: Command[Any] | None = None
        """The last wait in vain, since which nothing has changed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def execute(self, command: Command[T]) -> T:
        """Execute a command. An endless wait in vain raises `TimeoutError`, and so does its repeat."""
        wait = command.traits.waits
        if wait is None or not wait.is_endless:
            if isinstance(command, Operation | Procedure):
                self._waited = None
            return self._session.execute(command)
        limit_ms = getattr(command, wait.field)
        answer = self._session.execute(replace(command, **{wait.field: 0}))
        if not answer and (limit_ms is None or (limit_ms and command == self._waited)):
            raise TimeoutError("no job runs while a test waits: call run_due() or advance() before")
        self._waited = command
        return answer


class EagerSession(StillSession):
    """A session that runs the due jobs after each change, before the call returns."""

    def __init__(self, session: Session, runner: JobsRunner, *, raise_errors: bool) -> None:
        super().__init__(session)
        self._runner = runner
        self._raise_errors = raise_errors

    def execute(self, command: Command[T]) -> T:
        """Execute a command. A job that puts jobs does not run them: the outer call does."""
        answer = super().execute(command)
        if isinstance(command, Operation | Procedure) and not self._runner.is_running:
            self._runner.run_due(raise_errors=self._raise_errors)
        return answer


@contextmanager
def jobs_eagerly(jobs: Jobs, *, raise_errors: bool = True) -> Iterator[JobsRunner]:
    """Run each job inside of the `put` that brings it, for the length of a `with` block.

    An error of a task is raised at the `put`, unless `raise_errors` is False. Jobs for later run by
    `advance` of the runner that the block gets.
    """
    with JobsRunner(jobs) as runner:
        session: Any = EagerSession(runner.ms.session, runner, raise_errors=raise_errors)
        with jobs.bound_to(Millstream(session)):
            yield runner
