"""The crew of a worker of jobs: plain functions on threads, coroutine functions on one event loop."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable

from millstream.clock import Clock
from millstream.jobs.driving import Execute
from millstream.jobs.runner import JobAttempt, Runner
from millstream.queue.model.message import Message
from millstream.worker.crew import Crew, IsDropped, Report, ThreadCrew
from millstream.worker.effects import Handled


class JobCrew:
    """Runs jobs of plain functions on threads, and jobs of coroutine functions on a loop."""

    def __init__(
        self,
        runner: Runner,
        size: int,
        *,
        clock: Clock,
        execute: Execute,
        make_tasks: Callable[[Report], Crew],
        report: Report,
    ) -> None:
        self._runner = runner
        self._execute = execute
        self._report = report
        self._threads = ThreadCrew(self._run, size, report=self._report_plain)
        self._make_tasks = make_tasks
        self._tasks: Crew | None = None
        """The crew of coroutines, made with the first coroutine."""
        self._limits = TimeLimits(clock, self._give_up)
        runner.on_timed = self._limits.add
        runner.on_cancelled = self._cancel

    def begin(self, message: Message) -> None:
        """Run a job on the next free thread, or on the event loop."""
        if self._runner.is_async(message):
            if self._tasks is None:
                self._tasks = self._make_tasks(self._report_async)
            self._tasks.begin(message)
        else:
            self._threads.begin(message)

    def abandon(self, message: Message) -> None:
        """Cancel a coroutine, or stop waiting for a plain function."""
        if self._runner.is_async(message):
            if self._tasks is not None:
                self._tasks.abandon(message)
        else:
            self._threads.abandon(message)

    def close(self) -> None:
        """Cancel coroutines; plain functions end alone, and their results are dropped."""
        self._limits.close()
        self._threads.close()
        if self._tasks is not None:
            self._tasks.close()

    def _run(self, message: Message, is_dropped: IsDropped) -> Handled:
        return self._runner.run(message, self._execute, is_dropped)

    def _cancel(self, run: JobAttempt) -> None:
        """Cancel a coroutine; a plain function sees `ctx.cancelled`."""
        if run.task.is_async and self._tasks is not None:
            self._tasks.abandon(run.message)

    def _give_up(self, run: JobAttempt) -> None:
        if self._threads.drop(run.message):
            try:
                outcome = self._runner.overdue(run, self._execute)
            except (
                Exception
            ) as error:  # of the store or a hook: the shift decides, as for a handler
                outcome = Handled(run.message, error)
            following = self._report(outcome)
            if following is not None:
                self.begin(following)

    def _report_plain(self, outcome: Handled) -> Message | None:
        """Report the end of a plain function; a coroutine that follows begins on the loop."""
        message = self._report(outcome)
        if message is None or not self._runner.is_async(message):
            return message
        self.begin(message)
        return None

    def _report_async(self, outcome: Handled) -> Message | None:
        """Report the end of a coroutine; a plain function that follows begins on a thread."""
        message = self._report(outcome)
        if message is None or self._runner.is_async(message):
            return message
        self.begin(message)
        return None


class TimeLimits:
    """Calls a function for each plain function that is overdue, from a thread of its own.

    The thread starts with the first timeout: tasks without a timeout pay nothing.
    """

    def __init__(self, clock: Clock, give_up: Callable[[JobAttempt], None]) -> None:
        self._clock = clock
        self._give_up = give_up
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, JobAttempt]] = []
        self._count = 0
        self._is_closed = False

    def add(self, run: JobAttempt) -> None:
        """Watch an attempt that begins now."""
        assert run.task.options.timeout_s is not None
        with self._changed:
            self._count += 1
            due_s = run.started_s + run.task.options.timeout_s
            heapq.heappush(self._due, (due_s, self._count, run))
            if self._count == 1:
                threading.Thread(target=self._watch, name="millstream-limits", daemon=True).start()
            self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _watch(self) -> None:
        while (run := self._next()) is not None:
            self._give_up(run)

    def _next(self) -> JobAttempt | None:
        with self._changed:
            while not self._is_closed:
                wait_s = self._due[0][0] - self._clock.seconds() if self._due else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait_s)
        return None
