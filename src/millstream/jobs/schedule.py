"""A schedule: its definition, and the changes that ticks and users make to it.

The store holds one message per schedule in the queue `jobs.schedules`. The message is the schedule:
its value is the definition, and the message is due at the next tick. A change ends the message and puts
the changed schedule as a new message, in one commit. So of two changes at once, one succeeds, and the
other begins anew with the changed schedule.

This module decides, and does no I/O. Times are milliseconds since 1970, in UTC.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from millstream.errors import InvalidInput
from millstream.jobs.ticks import MISSED, Cron, Interval, Missed, Ticks, fire, parse_ticks
from millstream.log.model.names import check_name
from millstream.queue.model.spec import QueueSpec
from millstream.record import moment, wall_ms_of

QUEUE = "jobs.schedules"
"""The queue with a message per schedule."""

NAME_HEADER = "schedule"
"""The header with the name of a schedule: the queue holds one message per name."""

SCHEDULE_HEADER = "job-schedule"
TICK_HEADER = "job-tick"
TASK_HEADER = "task"

NEVER_MS = 253_370_764_800_000
"""The due time of a schedule that has no next tick, or is paused: 1 January 9999."""

FIRED_KEPT_S = 60.0
"""How long the queue remembers the messages of ticks that have fired."""

LEASE_S = 10.0
"""How long a worker may take to fire ticks before another worker does."""

ATTEMPTS_MAX = 65_535


def queue_spec() -> QueueSpec:
    """Return the settings of the queue of schedules."""
    return QueueSpec(
        dedup_by=NAME_HEADER,
        dedup_while="running",
        lease=LEASE_S,
        max_attempts=ATTEMPTS_MAX,
        done_retention=FIRED_KEPT_S,
        description="The schedules of jobs: one message each, due at the next tick.",
    )


class ScheduledJob(Struct, frozen=True, omit_defaults=True):
    """The job that each tick puts."""

    task: str
    queue: str = "jobs"
    arguments: dict[str, Any] = {}  # msgspec copies it
    unique: str | None = None
    """The key by which the queue drops a job while another job with the key waits or runs."""
    headers: dict[str, Any] = {}  # msgspec copies it
    """Headers of the job, such as its priority."""

    def value(self) -> bytes:
        """Return the arguments as the value of a message."""
        return msgspec.json.encode(self.arguments)


class Schedule(Struct, frozen=True, omit_defaults=True):
    """The definition of a schedule, and its next tick."""

    name: str
    job: ScheduledJob
    ticks: Ticks
    missed: Missed = "once"
    paused: bool = False
    next_ms: int | None = None
    """The tick that fires next; None if the cron expression never matches again."""
    last_ms: int | None = None
    """The last tick that fired."""
    declared: bool = False
    """Whether a program declares the schedule in its code."""
    start_ms: int | None = None
    """The time before which no tick fires, if a user named it."""

    @property
    def due_ms(self) -> int:
        """When a worker must look at the schedule."""
        return NEVER_MS if self.paused or self.next_ms is None else self.next_ms

    def encoded(self) -> bytes:
        """Return the schedule as the value of its message."""
        return msgspec.json.encode(self)


class PlacedJob(Struct, frozen=True):
    """A job to put, because of a tick or a trigger."""

    job: ScheduledJob
    headers: dict[str, Any]


class Change(Struct, frozen=True):
    """The effect of a tick or a call: the changed schedule, and the jobs to put in the same commit."""

    schedule: Schedule | None
    """None: the schedule ends."""
    jobs: list[PlacedJob] = field(default_factory=list)


class ScheduleInfo(Struct, frozen=True, kw_only=True):
    """A schedule as users see it."""

    name: str
    """The name of the schedule."""
    task: str
    """The name of the task that runs at each tick."""
    queue: str
    """The queue of the task."""
    arguments: dict[str, Any]
    """The arguments of each job, by parameter."""
    every: str | float
    """The cron expression, or the seconds between two ticks."""
    tz: str
    """The time zone of the cron expression."""
    missed: Missed
    """What happens to ticks that passed while no worker ran."""
    paused: bool
    """Whether the schedule waits for a resume."""
    next: datetime | None
    """The next tick, in UTC; none for a paused schedule."""
    last: datetime | None
    """The last tick that fired, in UTC."""
    declared: bool
    """Whether a program declares the schedule in its code."""
    failure: str = ""
    """Why workers could not put the job of the present tick."""
    upcoming: list[datetime] = field(default_factory=list)
    """The next few ticks, in UTC."""


State = Literal["created", "changed", "unchanged"]
"""What a put did to a stored schedule."""


def decode(name: str, value: bytes | None) -> Schedule:
    """Return the schedule in a message."""
    try:
        return msgspec.json.decode(value or b"", type=Schedule)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"the stored schedule {name!r} cannot be read: {error}") from None


def define(
    name: str,
    job: ScheduledJob,
    every: str | timedelta | float,
    *,
    tz: str = "UTC",
    missed: str = "once",
    start: datetime | None = None,
    declared: bool = False,
    now_ms: int,
) -> Schedule:
    """Return a new schedule; refuse a wrong description in a sentence that names the schedule."""
    check_name(name, "schedule")
    if start is not None and not isinstance(start, datetime):
        raise InvalidInput(f"schedule {name!r}: the start is a datetime, not {start!r:.100}")
    if start is not None and start.tzinfo is None:
        raise InvalidInput(f"schedule {name!r}: the start needs a time zone, as in tzinfo=UTC")
    start_ms = now_ms if start is None else wall_ms_of(start)
    if start_ms < now_ms:
        raise InvalidInput(
            f"schedule {name!r}: the start {moment(start_ms):%Y-%m-%d %H:%M:%S} UTC is in the past"
        )
    if missed not in MISSED:
        raise InvalidInput(
            f"schedule {name!r}: missed is 'skip', 'once' or 'all', not {missed!r:.100}"
        )
    check_name(job.queue, "queue")
    try:
        ticks = parse_ticks(every, tz, start_ms)
    except InvalidInput as error:
        raise InvalidInput(f"schedule {name!r}: {error}") from None
    # With a start, a tick at the start itself counts.
    first_ms = next(ticks.after(start_ms - (start is not None)), None)
    return Schedule(
        name,
        job,
        ticks,
        missed,  # type: ignore[arg-type]
        next_ms=first_ms,
        declared=declared,
        start_ms=None if start is None else start_ms,
    )


def revise(stored: Schedule, declaration: Schedule) -> Change:
    """Return the change that gives a stored schedule the definition of a declaration.

    If the ticks are the same, a tick that is due, or was missed, still fires, unless the declaration
    names another start. A paused schedule stays paused.
    """
    kept = replace(declaration, paused=stored.paused, last_ms=stored.last_ms)
    is_same_start = declaration.start_ms in (None, stored.start_ms)
    if is_same_start and _same_ticks(stored.ticks, declaration.ticks):
        kept = replace(kept, ticks=stored.ticks, next_ms=stored.next_ms, start_ms=stored.start_ms)
    return Change(kept)


def _same_ticks(stored: Ticks, declaration: Ticks) -> bool:
    """Return whether ticks are described alike; the anchor of an interval is not described."""
    if isinstance(stored, Interval) and isinstance(declaration, Interval):
        return stored.every_ms == declaration.every_ms
    return stored == declaration


def pause(stored: Schedule) -> Change:
    """Return a schedule that does not fire until it is resumed."""
    return Change(replace(stored, paused=True))


def resume(stored: Schedule, now_ms: int) -> Change:
    """Return a schedule that fires again, from its first tick after now.

    Ticks during the pause are not missed: a user did not want them. A resume also corrects a schedule
    whose next tick is far away, because the clock was once wrong.
    """
    next_ms = next(stored.ticks.after(now_ms), None)
    return Change(replace(stored, paused=False, next_ms=next_ms))


def trigger(stored: Schedule, now_ms: int) -> Change:
    """Return the unchanged schedule, and a job of it for now."""
    return Change(stored, [_placed(stored, now_ms)])


def delete(_stored: Schedule) -> Change:
    """End a schedule."""
    return Change(None)


def fire_due(stored: Schedule, now_ms: int) -> Change:
    """Return the jobs of a schedule whose message was due, and the schedule with its next tick.

    The store decides that the message is due. The clock of the caller may be behind.
    """
    if stored.paused or stored.next_ms is None:
        return Change(stored)
    now_ms = max(now_ms, stored.next_ms)
    firing = fire(stored.ticks, stored.next_ms, now_ms, stored.missed)
    last_ms = firing.ticks[-1] if firing.ticks else stored.last_ms
    changed = replace(stored, next_ms=firing.next_ms, last_ms=last_ms)
    return Change(changed, [_placed(stored, tick_ms) for tick_ms in firing.ticks])


def _placed(schedule: Schedule, at_ms: int) -> PlacedJob:
    """Return the job of a tick. Its headers name the task, the schedule and the tick."""
    names = {
        TASK_HEADER: schedule.job.task,
        SCHEDULE_HEADER: schedule.name,
        TICK_HEADER: moment(at_ms).isoformat(timespec="milliseconds"),
    }
    return PlacedJob(schedule.job, {**schedule.job.headers, **names})


def describe(schedule: Schedule, *, failure: str = "", upcoming: int = 0) -> ScheduleInfo:
    """Return a schedule as users see it, with a number of next ticks."""
    ticks, job = schedule.ticks, schedule.job
    next_ms = None if schedule.paused else schedule.next_ms
    later: list[int] = []
    if next_ms is not None and upcoming > 0:
        later = [next_ms, *islice(ticks.after(next_ms), upcoming - 1)]
    return ScheduleInfo(
        name=schedule.name,
        task=job.task,
        queue=job.queue,
        arguments=job.arguments,
        every=ticks.expression if isinstance(ticks, Cron) else ticks.every_ms / 1000,
        tz=ticks.zone if isinstance(ticks, Cron) else "UTC",
        missed=schedule.missed,
        paused=schedule.paused,
        next=None if next_ms is None else moment(next_ms),
        last=None if schedule.last_ms is None else moment(schedule.last_ms),
        declared=schedule.declared,
        failure=failure,
        upcoming=[moment(tick_ms) for tick_ms in later],
    )
