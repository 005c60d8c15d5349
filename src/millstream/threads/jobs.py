# Generated from src/millstream/aio/jobs.py by `make generate`: change that file, not this one.

"""Jobs as threads hold them: the tasks of an application, on one store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from millstream.command import Transact
from millstream.errors import InvalidInput
from millstream.jobs.cancelling import cancel_member, membership_of
from millstream.jobs.context import JobContext, current_job
from millstream.jobs.definition import Pending, TaskDefinition
from millstream.jobs.description import UNFINISHED
from millstream.jobs.driving import drive
from millstream.jobs.job_ids import JobPlace, place_of_job
from millstream.jobs.key_limits import KeyLimit, LimitsOfTask
from millstream.jobs.options import ATTEMPTS, QUEUE, RESULTS_S, BackoffLike, options_of
from millstream.jobs.reports import OnJob
from millstream.jobs.results import ResultType
from millstream.jobs.selection import Matcher, matches
from millstream.jobs.shares import QueueShares
from millstream.jobs.task_names import task_name_of
from millstream.jobs.ticks import Missed
from millstream.log.model.names import check_name
from millstream.numbers import checked_numbers
from millstream.queue.commands import CancelMessage
from millstream.queue.model.message import Message
from millstream.queue.runs import cancel_command
from millstream.record import Seconds
from millstream.threads.database import Millstream
from millstream.threads.gathered import GatheredJobs
from millstream.threads.job import Job
from millstream.threads.job_schedules import JobSchedules
from millstream.threads.job_store import JobStore
from millstream.threads.job_worker import JobWorker
from millstream.threads.queue import Queue
from millstream.threads.stored_jobs import StoredJobs
from millstream.threads.task import Task

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_PLAIN_JSON = ResultType()

CANCELS_PER_COMMIT = 500


class TaskDecorator(Protocol):
    """Makes a task of a function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Pending[R]], /
    ) -> Task[P, R, Pending[R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R, R]: ...
    @overload
    def __call__(self, function: Callable[P, Pending[R]], /) -> Task[P, R, Pending[R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class ScheduleDecorator(Protocol):
    """Declares a schedule of a task, or of a function, which becomes a task."""

    @overload  # a task can be called as well, so the others would take it for a function
    def __call__(self, function: Task[P, R, C], /) -> Task[P, R, C]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Pending[R]], /
    ) -> Task[P, R, Pending[R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R, R]: ...
    @overload
    def __call__(self, function: Callable[P, Pending[R]], /) -> Task[P, R, Pending[R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


@checked_numbers
class Jobs(JobStore):
    """The tasks of an application. `place` is a path, an address, or an open store.

    Without a place, call `bind` before the first job. The store is opened at the first use, in each
    process separately, so a module with tasks can be imported before a fork.
    """

    def __init__(
        self,
        place: str | os.PathLike[str] | Millstream | None = None,
        *,
        queue: str = QUEUE,
        keep_results: Seconds = RESULTS_S,
    ) -> None:
        super().__init__(place, keep_results=keep_results)
        self.queue = check_name(queue, "queue")
        """The queue of tasks that name no queue."""
        self.schedules = JobSchedules(self)
        """The schedules: declared in code, or put at run time."""

    # Tasks.

    @overload
    def task(
        self, function: Callable[Concatenate[JobContext, P], Pending[R]], /
    ) -> Task[P, R, Pending[R]]: ...
    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, function: Callable[P, Pending[R]], /) -> Task[P, R, Pending[R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry_on: type[BaseException] | Sequence[type[BaseException]] = (Exception,),
        max_attempts: int = ATTEMPTS,
        backoff: BackoffLike | None = None,
        timeout: Seconds | None = None,
        kill_after: Seconds | None = None,
        priority: int | None = None,
        unique: bool | str | Iterable[str] = False,
        unique_by: str | Iterable[str] = (),
        unique_for: Seconds | None = None,
        limits: LimitsOfTask | None = None,
    ) -> TaskDecorator: ...
    def task(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry_on: type[BaseException] | Sequence[type[BaseException]] = (Exception,),
        max_attempts: int = ATTEMPTS,
        backoff: BackoffLike | None = None,
        timeout: Seconds | None = None,
        kill_after: Seconds | None = None,
        priority: int | None = None,
        unique: bool | str | Iterable[str] = False,
        unique_by: str | Iterable[str] = (),
        unique_for: Seconds | None = None,
        limits: LimitsOfTask | None = None,
    ) -> Any:
        """Make a task of a function, of either kind; a decorator, with or without options.

        `retry_on` names the exceptions after which a job is tried again, up to `max_attempts` times,
        after the `backoff`. `timeout` limits one attempt. In a process pool, a job that goes on after
        its timeout or its cancel ends with its process after `kill_after`. A higher `priority`, from 0 to 9, starts
        sooner. `unique` drops a job while another with the same arguments (or the same parameters
        `unique_by`) is in one of the named states; `unique_for` drops it for a while instead.
        `limits` hold for each key, an argument of the jobs: `{"key": "customer", "running": 2,
        "per_minute": 60}`.
        """

        def decorate(function: Callable[..., Any]) -> Task[..., Any, Any]:
            task = task_name_of(function, name)
            options = options_of(
                task,
                self.queue,
                queue=queue,
                retry_on=retry_on,
                max_attempts=max_attempts,
                backoff=backoff,
                timeout=timeout,
                kill_after=kill_after,
                priority=priority,
                unique=unique,
                unique_by=unique_by,
                unique_for=unique_for,
                limits=limits,
            )
            return self._add(TaskDefinition(function, task, options))

        return decorate if function is None else decorate(function)

    def every(
        self,
        every: str | timedelta | float,
        *,
        tz: str = "UTC",
        name: str | None = None,
        missed: Missed = "once",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> ScheduleDecorator:
        """Run a task at each tick of a cron expression in a time zone, or after each interval.

        A worker stores the schedule when it starts. Without a name, the schedule has the name of the
        task. `missed` says what happens to ticks that passed while no worker ran: "skip" them, fire
        the last one "once", or fire "all". `args` and `kwargs` are the arguments of each job.
        """

        def decorate(function: Any) -> Any:
            task = function if isinstance(function, Task) else self.task(function)
            self.schedules.declare(
                name, task, every, tz=tz, missed=missed, args=args, kwargs=kwargs
            )
            return task

        return decorate

    def _add(self, definition: TaskDefinition) -> Task[..., Any, Any]:
        namesake = self.tasks.get(definition.name)
        if namesake is not None:
            raise InvalidInput(
                f"two tasks have the name {definition.name!r}: {_place_of(namesake)} and "
                f"{_place_of(definition)}; give one of them another name=..."
            )
        for registered in self.tasks.values():
            self._check_queue(registered, definition)
        self.tasks[definition.name] = definition
        return Task(self, definition)

    def _check_queue(self, registered: TaskDefinition, task: TaskDefinition) -> None:
        """Refuse two tasks in one queue that want different settings of it."""
        if registered.options.queue != task.options.queue:
            return
        if registered.options.spec(self.results_s) != task.options.spec(self.results_s):
            raise InvalidInput(
                f"tasks {registered.name!r} and {task.name!r} are in queue {task.options.queue!r}, but "
                "unique= and limits= are settings of a queue: give one of them another queue=..."
            )

    # Jobs.

    def get(self, id: str) -> Job[Any]:
        """Return the handle of a job by its id. The job need not exist."""
        place = place_of_job(id)
        ms = self.opened()
        return Job(ms.queue(place.queue), place.put_id, _PLAIN_JSON)

    def cancel(self, where: str, *, queue: str | None = None, dry_run: bool = False) -> int:
        """Cancel all jobs that match a filter and have not ended, and return their number.

        The filter sees the headers of jobs: `"task = 'shop.tasks:mail'"`. Waiting jobs never start,
        and running jobs are asked to end. Without `queue`, jobs in the queues of all tasks are
        searched. With `dry_run` jobs are only counted.
        """
        from millstream.filters import parse  # only users of filters pay for their parser

        if not isinstance(where, str):
            raise InvalidInput(f"jobs are cancelled by a filter, a text, not by {where!r:.100}")
        condition = parse(where)
        ms = self.opened()
        names = {task.options.queue for task in self.tasks.values()} if queue is None else {queue}
        total = 0
        for name in sorted(names):
            if ms.queue(name).exists():
                total += self._cancel_in(ms.queue(name), condition, dry_run=dry_run)
        return total

    def _cancel_in(self, queue: Queue, condition: Matcher, *, dry_run: bool) -> int:
        total = 0
        for state in UNFINISHED:
            after = -1
            while page := queue.peek(CANCELS_PER_COMMIT, state=state, after=after):
                after = page[-1].claim_id
                chosen = [message for message in page if matches(condition, message)]
                if dry_run or not chosen:
                    total += len(chosen)
                    continue
                total += self._cancel_all(queue, chosen)
        return total

    def _cancel_all(self, queue: Queue, messages: list[Message]) -> int:
        """Cancel jobs: members of chains and groups singly, and all others in one commit."""
        session, total = queue.session, 0
        plain: list[CancelMessage] = []
        for message in messages:
            membership = membership_of(message.headers)
            if membership is None or message.id is None:
                plain.append(cancel_command(queue.name, message, running=True))
                continue
            place = JobPlace(queue.name, message.id)
            outcome = drive(cancel_member(place, membership, session.limits), session.execute)
            total += outcome is not False
        outcomes = session.execute(Transact(plain)) if plain else []
        return total + sum(outcome is not False for outcome in outcomes)

    def gathered(self, id: str) -> GatheredJobs[Any]:
        """Return the handle of a chain or a group by its id."""
        return GatheredJobs(self.opened(), id)

    # Limits per key.

    def limit(
        self,
        key: object,
        *,
        running: int | None = None,
        per_minute: float | None = None,
        task: Task[..., Any, Any] | str | None = None,
    ) -> None:
        """Give one key limits of its own, from now on, in all processes.

        They replace the limits of the task; None leaves the limit of the task. `task` names one task
        with limits; without it, the limits are for the key in all tasks with limits.
        """
        queues = self._limited_queues(task)
        stored = StoredJobs(self.opened().session)
        stored.limit(key, running=running, per_minute=per_minute, queues=queues)

    def limits(self) -> list[KeyLimit]:
        """Return the keys that have limits of their own, by queue and name."""
        stored = StoredJobs(self.opened().session)
        limited = any(task.options.limits for task in self.tasks.values())
        return stored.limits(self._limited_queues(None)) if limited else []

    def remove_limit(self, key: object, *, task: Task[..., Any, Any] | str | None = None) -> bool:
        """Remove the limits of a key, so that the limits of the task hold; False if the key had no limits."""
        stored = StoredJobs(self.opened().session)
        return stored.remove_limit(key, queues=self._limited_queues(task))

    def _limited_queues(self, task: Task[..., Any, Any] | str | None) -> list[str]:
        """Return the queues of tasks with limits; of one task, if a task is named."""
        name = task.task_name if isinstance(task, Task) else task
        if name is not None and name not in self.tasks:
            raise InvalidInput(f"these jobs have no task {name!r:.100}")
        chosen = [self.tasks[name]] if name is not None else list(self.tasks.values())
        limited = {each.options.queue: each.options for each in chosen if each.options.limits}
        if not limited:
            which = "no task has limits" if name is None else f"task {name!r} has no limits"
            raise InvalidInput(
                f'{which}: write @jobs.task(limits={{"key": "customer", "running": 2}})'
            )
        for options in limited.values():
            self.make_queue(options)
        return sorted(limited)

    def current(self) -> JobContext:
        """Return the context of the job that runs here; raises outside of a job."""
        return current_job()

    def worker(
        self,
        *,
        concurrency: int = 1,
        queues: QueueShares | None = None,
        on_job: OnJob | None = None,
        lease: Seconds | None = None,
    ) -> JobWorker:
        """A worker that runs jobs in this process: plain functions on threads, others on one loop.

        `concurrency` jobs run at a time. `queues` names the queues, or gives each a share of the
        concurrency; without it, the worker serves the queues of all tasks. `on_job` takes a report
        when a job begins and when it ends.
        """
        return JobWorker(
            self, self.schedules, concurrency=concurrency, queues=queues, on_job=on_job, lease=lease
        )


def _place_of(task: TaskDefinition) -> str:
    function = task.function
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
