# Generated from src/millstream/aio/job_schedules.py by `make generate`: change that file, not this one.

"""The schedules of an application as threads hold them: declared in code, or put at run time.

A declaration is checked where it is written, and stored when a worker starts, or by `sync`. The store
then holds the schedule, and any worker of the store fires it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from millstream.errors import Closed, InvalidInput, MillstreamError
from millstream.jobs.definition import TaskDefinition
from millstream.jobs.schedule import Schedule, ScheduledJob, ScheduleInfo, define
from millstream.jobs.ticks import Missed
from millstream.record import Seconds
from millstream.threads.job_store import JobStore
from millstream.threads.schedules import ScheduleStore, SyncReport
from millstream.threads.task import Task
from millstream.threads.worker_runtime import Bell, idle_wait_s
from millstream.worker.endurance import may_pass

log = logging.getLogger("millstream.jobs")

PAUSE_S = 1.0
"""The pause after a failure that may pass, such as a full disk."""


class Declaration(msgspec.Struct, frozen=True):
    """A schedule in the code of a program. Its first tick is known when it is stored."""

    name: str
    task: TaskDefinition
    job: ScheduledJob
    every: str | timedelta | float
    tz: str
    missed: Missed

    def schedule(self, now_ms: int) -> Schedule:
        """Return the schedule to store at a time."""
        return define(
            self.name,
            self.job,
            self.every,
            tz=self.tz,
            missed=self.missed,
            declared=True,
            now_ms=now_ms,
        )


class JobSchedules:
    """The schedules of the jobs of a store."""

    def __init__(self, jobs: JobStore) -> None:
        self._jobs = jobs
        self._declared: dict[str, Declaration] = {}

    def put(
        self,
        name: str,
        task: Task[..., Any, Any] | str,
        every: str | timedelta | float,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        tz: str = "UTC",
        missed: Missed = "once",
        start: datetime | None = None,
    ) -> ScheduleInfo:
        """Store a schedule, or replace the stored schedule of this name, and return it.

        See `Jobs.every`. `start` is the time before which no tick fires. An interval begins there,
        or now. A paused schedule stays paused.
        """
        definition = self._definition_of(name, task)
        job = _job_of(definition, args, kwargs)
        store = self._store()
        now_ms = self._jobs.opened().session.clock.wall_ms()
        schedule = define(name, job, every, tz=tz, missed=missed, start=start, now_ms=now_ms)
        self._jobs.make_queue(definition.options)
        store.store(schedule)
        return store.get(name)

    def list(self, *, upcoming: int = 0) -> list[ScheduleInfo]:
        """Return the stored schedules in the order of their names, with a number of next ticks."""
        return self._store().list(upcoming=upcoming)

    def get(self, name: str, *, upcoming: int = 5) -> ScheduleInfo:
        """Return a stored schedule; `NotFound` if there is no schedule of this name."""
        return self._store().get(name, upcoming=upcoming)

    def pause(self, name: str) -> ScheduleInfo:
        """Stop a schedule until it is resumed; its ticks meanwhile do not fire later."""
        return self._store().pause(name)

    def resume(self, name: str) -> ScheduleInfo:
        """Let a schedule fire again, from its first tick after now."""
        return self._store().resume(name)

    def trigger(self, name: str) -> str:
        """Put a job of a schedule now, and return the id of the job. Its ticks stay as they are."""
        return self._store().trigger(name)

    def delete(self, name: str) -> bool:
        """Delete a schedule; False if there is no schedule of this name. Its jobs stay.

        The next worker stores a schedule again that its code declares.
        """
        return self._store().delete(name)

    # What the code declares.

    def declare(
        self,
        name: str | None,
        task: Task[..., Any, Any],
        every: str | timedelta | float,
        *,
        tz: str,
        missed: Missed,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> None:
        """Note a schedule of the code; refuse a wrong one here, where the code is written."""
        definition = task.definition
        chosen = definition.name if name is None else name
        job = _job_of(definition, args, kwargs)
        declaration = Declaration(
            name=chosen, task=definition, job=job, every=every, tz=tz, missed=missed
        )
        declaration.schedule(now_ms=0)
        namesake = self._declared.get(chosen)
        if namesake is not None:
            raise InvalidInput(
                f"two schedules have the name {chosen!r}, of the tasks {namesake.task.name!r} and "
                f"{definition.name!r}; give one of them another name=..."
            )
        self._declared[chosen] = declaration

    def sync(self) -> SyncReport:
        """Store the schedules that the code declares, and report stored ones that it lacks.

        A worker does this when it starts. Schedules that the code lacks are kept and fire on: delete
        them, if no other program declares them.
        """
        store = self._store()
        now_ms = self._jobs.opened().session.clock.wall_ms()
        for declaration in self._declared.values():
            self._jobs.make_queue(declaration.task.options)
        report = store.sync([each.schedule(now_ms) for each in self._declared.values()])
        for name in report.undeclared:
            log.warning(
                "schedule %r is stored, but this program does not declare it; it still fires "
                "(millstream schedule delete removes it)",
                name,
            )
        return report

    # What workers do.

    def fire(self, *, wait: Seconds | None = None) -> int:
        """Fire the ticks that are due, up to a number, and return how many jobs were put."""
        return self._store().fire(wait=wait)

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Fire ticks as they become due, until the worker is over."""
        bell = Bell()  # nobody rings: it measures the pause after a failure
        wait_s = idle_wait_s(self._jobs.opened().session)
        while not is_over():
            try:
                self.fire(wait=wait_s)
            except Closed:
                return
            except MillstreamError as error:
                if not may_pass(error):
                    log.error("this worker fires no schedules any more: %s", error)
                    return
                log.warning("schedules wait for the store: %s", error)
                bell.wait(PAUSE_S)

    def _store(self) -> ScheduleStore:
        return ScheduleStore(self._jobs.opened().session)

    def _definition_of(self, name: str, task: Task[..., Any, Any] | str) -> TaskDefinition:
        if isinstance(task, Task):
            return task.definition
        definition = self._jobs.tasks.get(task)
        if definition is None:
            task_names = ", ".join(sorted(self._jobs.tasks)) or "none"
            raise InvalidInput(
                f"schedule {name!r}: these jobs have no task {task!r:.100}; they have {task_names:.300}"
            )
        return definition


def _job_of(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> ScheduledJob:
    """Return the job that each tick puts; its arguments are checked as those of a put."""
    encoded = task.arguments.encode(tuple(args), kwargs or {})
    return ScheduledJob(
        task=task.name,
        queue=task.options.queue,
        arguments=msgspec.json.decode(encoded),
        unique=task.unique_key(encoded),
        headers=dict(task.headers_of(encoded)),
    )
