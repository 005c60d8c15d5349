"""Runs a job from a message: finds the task, calls the function, and decides the end of the attempt.

The runner holds no lease and claims nothing: a worker, or a process that a worker feeds, calls it.
Every error of a task becomes a verdict. Only the store's own errors are raised.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Raw

from millstream.clock import Clock
from millstream.command import Command
from millstream.errors import InvalidInput
from millstream.jobs.arguments import BoundCall
from millstream.jobs.context import CURRENT, SENT, AlreadySent, JobContext, Send
from millstream.jobs.continuation import (
    LINKS,
    RESULTS_HEADER,
    TASK_HEADER,
    FollowingCall,
    results_of_members,
)
from millstream.jobs.definition import TaskDefinition
from millstream.jobs.driving import AsyncExecute, Execute, Steps, drive, drive_async
from millstream.jobs.endings import end_done, end_failed, read_outcomes
from millstream.jobs.job_ids import job_id_of
from millstream.jobs.options import RESULTS_S
from millstream.jobs.outcomes import (
    CANCEL_REASON,
    AttemptsUsed,
    WrongArguments,
    counted_attempts,
    last_reason,
    unknown_task,
    verdict_of,
)
from millstream.jobs.reports import JobCancelling, JobFinished, JobOutcome, JobStarted, OnJob
from millstream.jobs.results import encode_result
from millstream.limits import Limits
from millstream.log.commands import GetExtent
from millstream.queue.commands import GetAttempts
from millstream.queue.model.message import Message
from millstream.worker.crew import IsDropped
from millstream.worker.effects import Handled, Verdict
from millstream.worker.shift import CANCELLED, TimeLimitExceeded

_logger = logging.getLogger("millstream.jobs")

NO_ARGUMENTS = b"{}"


class UnknownTask(Exception):
    """The worker has no task of this name."""


class JobAttempt:
    """One attempt at a job: task, context, and start time."""

    __slots__ = (
        "context",
        "is_given_up",
        "is_linked",
        "is_overdue",
        "message",
        "started_s",
        "task",
    )

    def __init__(
        self, task: TaskDefinition, message: Message, context: JobContext, started_s: float
    ) -> None:
        self.task = task
        self.message = message
        self.context = context
        self.started_s = started_s
        self.is_linked = not LINKS.isdisjoint(message.headers)
        """Whether the job belongs to a chain or a group."""
        self.is_overdue = self.is_given_up = False
        """Whether the attempt has ended, and its plain function goes on."""


def _is_never_dropped(message: Message) -> bool:
    return False


class Runner:
    """Runs the jobs of a set of tasks."""

    def __init__(
        self,
        tasks: Mapping[str, TaskDefinition],
        limits: Limits,
        clock: Clock,
        on_job: OnJob | None = None,
        *,
        keep_s: float = RESULTS_S,
    ) -> None:
        self._keep_s = keep_s
        self._tasks = tasks
        self._limits = limits
        self._clock = clock
        self._on_job = on_job
        self.on_timed: Callable[[JobAttempt], None] | None = None
        """Takes each attempt at a plain function with a timeout, when it begins."""
        self.on_cancelled: Callable[[JobAttempt], None] | None = None
        """Takes each running job that is asked to end."""
        self._running: dict[int, JobAttempt] = {}
        """The running attempts, by the `id` of their messages."""
        self.unknown: Counter[str] = Counter()
        """How many jobs named a task that is not known here, by name."""

    def task_of(self, message: Message) -> TaskDefinition | None:
        """Return the task of a job, or None for a task that this process does not know."""
        name = message.headers.get(TASK_HEADER)
        return self._tasks.get(name) if isinstance(name, str) else None

    def is_async(self, message: Message) -> bool:
        """Whether the job runs as a coroutine."""
        task = self.task_of(message)
        return task is not None and task.is_async

    # Running.

    def run(self, message: Message, execute: Execute, is_dropped: IsDropped) -> Handled:
        """Run a job whose task is a plain function."""

        def send(command: Command[Any]) -> AlreadySent:
            execute(command)
            return SENT

        run = self._begin(message, send)
        if isinstance(run, Handled):
            return run
        task, context = run.task, run.context
        token = CURRENT.set(context)
        if self.on_timed is not None and task.options.timeout_s is not None:
            self.on_timed(run)
        try:
            args, kwargs = (
                drive(self._prepare(run), execute) if _needs_store(run) else _arguments_of(run)
            )
            result = task.call(args, kwargs, context)
            if task.is_generator:
                result = _emitted(context, result)
            elif result is not None and inspect.iscoroutine(result):
                result.close()
                raise TypeError("the task returned a coroutine: make the task itself `async def`")
            encoded = encode_result(task.name, result)
        except BaseException as error:  # any error of the task: the verdict decides
            return drive(self._fail(run, error, is_dropped), execute)
        finally:
            CURRENT.reset(token)
        if not _has_ending(run) or is_dropped(message):
            return self._done(run, encoded)
        return drive(self._finish(run, encoded), execute)

    async def run_async(self, message: Message, execute: AsyncExecute) -> Handled:
        """Run a job whose task is a coroutine function."""

        def send(command: Command[Any]) -> Awaitable[None]:
            return asyncio.ensure_future(execute(command))

        run = self._begin(message, send)
        if isinstance(run, Handled):
            return run
        CURRENT.set(run.context)  # each job is a task of the loop, with a context of its own
        try:
            args, kwargs = (
                await drive_async(self._prepare(run), execute)
                if _needs_store(run)
                else _arguments_of(run)
            )
            call = run.task.call(args, kwargs, run.context)
            if run.task.is_generator:
                call = _emitted_async(run.context, call)
            encoded = encode_result(run.task.name, await _within(run, call))
        except BaseException as error:  # any error of the task: the verdict decides
            return await drive_async(self._fail(run, error), execute)
        if not _has_ending(run):
            return self._done(run, encoded)
        return await drive_async(self._finish(run, encoded), execute)

    # Beginning and ending.

    def _begin(self, message: Message, send: Send) -> JobAttempt | Handled:
        task = self.task_of(message)
        if task is None:
            return self._refuse(message)
        now_s = self._clock.seconds()
        timeout_s = task.options.timeout_s
        deadline = None
        if timeout_s is not None:
            now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
            deadline = now + timedelta(seconds=timeout_s)
        if self._on_job is not None:
            self._on_job(
                JobStarted(
                    id=job_id_of(message.queue, message.id or 0),
                    task=task.name,
                    queue=message.queue,
                    claim_id=message.claim_id,
                    attempt=message.attempt,
                    wait_s=max(0.0, (self._clock.wall_ms() - message.timestamp) / 1000),
                    kill_after_s=task.options.kill_after_s,
                )
            )
        context = JobContext(
            task.name, message, self._limits, deadline, keep_s=self._keep_s, send=send
        )
        run = self._running[id(message)] = JobAttempt(task, message, context, now_s)
        return run

    def _refuse(self, message: Message) -> Handled:
        """Leave a job waiting whose task is not known here; the first of each task is logged."""
        name = str(message.headers.get(TASK_HEADER))
        if not self.unknown[name]:
            _logger.warning(
                "job_of_unknown_task task=%s queue=%s: the job stays waiting", name, message.queue
            )
        self.unknown[name] += 1
        if self._on_job is not None:
            job_id = job_id_of(message.queue, message.id or 0)
            self._on_job(
                JobFinished(
                    id=job_id, task=name, attempt=message.attempt, outcome="unknown_task", run_s=0.0
                )
            )
        return Handled(message, UnknownTask(name), verdict=unknown_task(name))

    def _prepare(self, run: JobAttempt) -> Steps[BoundCall]:
        """Return the arguments of a job; refuse a job whose attempts are used up."""
        message = run.message
        if message.attempt > run.task.options.max_attempts:
            tries = yield GetAttempts(message.queue, message.claim_id)
            counted = counted_attempts(tries) - 1  # without the attempt that begins
            if counted >= run.task.options.max_attempts:
                raise AttemptsUsed(
                    f"{counted} attempts ended without a result; the last one: {last_reason(tries)}"
                )
        log = message.headers.get(RESULTS_HEADER)
        if log is None:
            return _arguments_of(run)
        return _arguments_of(run, (yield from self._with_results(run, str(log))))

    def _with_results(self, run: JobAttempt, log: str) -> Steps[bytes | None]:
        """Return the arguments of the callback of a group, with the results of its members."""
        extent = yield GetExtent(log, 0)
        outcomes = yield from read_outcomes(log, extent.end)
        first = run.task.arguments.first
        if not outcomes or first is None:
            return run.message.value
        callback = FollowingCall(run.task.name, "", first, Raw(run.message.value or NO_ARGUMENTS))
        return callback.value(results_of_members(outcomes))

    def _finish(self, run: JobAttempt, result: bytes | None) -> Steps[Handled]:
        """End a job that is done by a commit of its own."""
        committed = yield from end_done(run.context, result)
        return self._done(run, result, committed=committed)

    def _done(self, run: JobAttempt, result: bytes | None, *, committed: bool = False) -> Handled:
        """Return the end of a job that is done. The worker acknowledges several jobs in one commit."""
        self._running.pop(id(run.message), None)
        if self._on_job is not None:
            self._report_run(run, "done")
        return Handled(run.message, committed=committed, result=result)

    def _fail(
        self, run: JobAttempt, error: BaseException, is_dropped: IsDropped = _is_never_dropped
    ) -> Steps[Handled]:
        """End an attempt that raised an error."""
        tries = None
        if run.message.attempt >= run.task.options.max_attempts:
            tries = yield GetAttempts(run.message.queue, run.message.claim_id)
        verdict = self.verdict(run, error, tries)
        committed = False
        if not is_dropped(run.message) and (verdict.how == "fail" or run.context.cancelled):
            committed = yield from end_failed(run.context, verdict)
        self._running.pop(id(run.message), None)
        outcome: JobOutcome = "failed" if verdict.how == "fail" else "retried"
        if run.context.is_cancel_requested:
            outcome = "cancelled"
        self._report_run(run, outcome, verdict.reason.partition("\n")[0])
        return Handled(run.message, error, committed=committed, verdict=verdict)

    def overdue(self, run: JobAttempt, execute: Execute) -> Handled:
        """Give up on a plain function that runs longer than its timeout: a thread cannot be stopped."""
        error = TimeLimitExceeded(f"took longer than {run.task.options.timeout_s:g} s")
        run.is_overdue = True
        try:
            return drive(self._fail(run, error), execute)
        finally:  # also if the store or a hook raises: the job is tried again beside the function
            self._running.pop(id(run.message), None)
            run.is_given_up = True
            run.context.cancel()

    def cancel(self, claims: Iterable[int]) -> None:
        """Ask running jobs to end; claims of other workers are ignored."""
        requested = set(claims)
        for run in list(self._running.values()):
            if run.message.claim_id in requested and not run.context.is_cancel_requested:
                run.context.is_cancel_requested = True
                run.context.cancel()
                if self._on_job is not None:
                    self._on_job(JobCancelling(id=run.context.id, attempt=run.message.attempt))
                if self.on_cancelled is not None:
                    self.on_cancelled(run)

    def verdict(self, run: JobAttempt, error: BaseException, tries: Any) -> Verdict:
        """Return how an attempt ends; `tries` holds all attempts before a possible last attempt."""
        if run.context.is_cancel_requested:
            return Verdict("nack", CANCEL_REASON, 0)
        if isinstance(error, asyncio.CancelledError) and _is_worker_cancelling():
            return Verdict("nack", CANCELLED, 0)
        attempts_max = run.task.options.max_attempts
        is_last = tries is not None and counted_attempts(tries) >= attempts_max
        return verdict_of(error, run.task, run.message.attempt, random.random(), is_last=is_last)

    def _report_run(self, run: JobAttempt, outcome: JobOutcome, reason: str = "") -> None:
        if self._on_job is not None:
            self._on_job(
                JobFinished(
                    id=job_id_of(run.message.queue, run.message.id or 0),
                    task=run.task.name,
                    attempt=run.message.attempt,
                    outcome="dropped" if run.is_given_up else outcome,
                    run_s=self._clock.seconds() - run.started_s,
                    reason=reason,
                    is_left_running=run.is_overdue and not run.is_given_up,
                )
            )


def _is_worker_cancelling() -> bool:
    """Whether the worker has cancelled this coroutine. A task may also raise a `CancelledError` alone."""
    try:
        running = asyncio.current_task()
    except RuntimeError:
        return False  # a thread, which runs a plain function
    return running is not None and running.cancelling() > 0


def _needs_store(run: JobAttempt) -> bool:
    """Whether the store is asked before the task runs; most jobs need no such look."""
    return run.is_linked or run.message.attempt > run.task.options.max_attempts


def _has_ending(run: JobAttempt) -> bool:
    """Whether the end of a job that is done may need a commit of its own."""
    return run.is_linked or run.context.begun_tx is not None or run.context.has_output


def _arguments_of(run: JobAttempt, value: bytes | None = None) -> BoundCall:
    """Return the arguments of a call, from the message or from a value in its place."""
    try:
        return run.task.arguments.decode(value or run.message.value or NO_ARGUMENTS)
    except InvalidInput as error:
        raise WrongArguments(str(error)) from None


def _emitted(context: JobContext, chunks: Generator[Any, None, Any]) -> Any:
    """Write the chunks of a generator to the output of the job, and return its result."""
    while True:
        try:
            chunk = next(chunks)
        except StopIteration as stop:
            return stop.value
        context.emit(chunk)


async def _emitted_async(context: JobContext, chunks: AsyncIterator[Any]) -> None:
    """Write the chunks of a generator to the output of the job."""
    async for chunk in chunks:
        await context.emit(chunk)


async def _within(run: JobAttempt, call: Awaitable[Any]) -> Any:
    """Await a coroutine within the timeout of its task."""
    limit = asyncio.timeout(run.task.options.timeout_s)
    try:
        async with limit:
            return await call
    except TimeoutError as error:
        if limit.expired():
            raise TimeLimitExceeded(f"took longer than {run.task.options.timeout_s:g} s") from error
        raise
