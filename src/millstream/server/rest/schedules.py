"""Schedules of jobs over REST: list, put, pause, resume, trigger and delete them.

As for jobs, the permissions have the noun `job`: `job:read:jobs.schedules` shows schedules, and
`job:write:jobs.schedules` pauses and resumes them. A trigger also needs `job:write` on the queue of the
job. A put defines new work, and a delete ends it: both need `queue:write:jobs.schedules`, and a put also
the right to put into the queue of the job.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from millstream.aio.schedules import ScheduleStore
from millstream.format.packing import pack_single
from millstream.jobs.options import PRIORITY_HEADER, QUEUE
from millstream.jobs.schedule import ScheduledJob, ScheduleInfo, define
from millstream.jobs.task_names import check_task_name
from millstream.jobs.ticks import Missed
from millstream.queue.commands import PutMessages
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints, Reply
from millstream.server.rest.jobs import on_jobs
from millstream.server.rest.logs import Existed
from millstream.server.rest.messages import Priority


class UpcomingQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """How much of each schedule to show."""

    upcoming: Annotated[int, Meta(ge=0, le=100)] = 0
    """The number of next ticks to list."""


class Schedules(Struct, kw_only=True):
    """The schedules in the order of their names."""

    schedules: list[ScheduleInfo]
    """All schedules of the store."""


class ScheduleBody(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The definition of a schedule."""

    task: str
    """The name of the task, as workers know it: `module:function`, or its own name."""
    every: str | float
    """A cron expression of five fields, or a number of seconds."""
    tz: str = "UTC"
    """The time zone of the cron expression, such as `Europe/Lisbon`."""
    missed: Missed = "once"
    """What happens to ticks that passed while no worker ran."""
    arguments: dict[str, Any] = {}  # msgspec copies it
    """The arguments of each job, by parameter."""
    queue: str = QUEUE
    """The queue of the task."""
    priority: Priority | None = None
    start: datetime | None = None
    """The time before which no tick fires, with a time zone; default: now."""


class TriggeredJob(Struct, kw_only=True):
    """The job of a trigger."""

    job: str
    """The id of the job."""


endpoint = Endpoints("schedules")


@endpoint(
    "PUT /schedules/{schedule}",
    description="The schedule existed and now has this definition",
    also={201: "The schedule was created"},
    errors=(404, 409),
)
async def put_schedule(ask: Ask, schedule: str, body: ScheduleBody) -> Reply[ScheduleInfo]:
    """Store a schedule, or give a stored schedule this definition.

    A paused schedule stays paused. The server does not know the task: a worker checks the arguments
    when a job runs.
    """
    headers = {} if body.priority is None else {PRIORITY_HEADER: body.priority}
    job = ScheduledJob(
        task=check_task_name(body.task),
        queue=body.queue,
        arguments=body.arguments,
        headers=headers,
    )
    wanted = define(
        schedule,
        job,
        body.every,
        tz=body.tz,
        missed=body.missed,
        start=body.start,
        now_ms=ask.clock.wall_ms(),
    )
    # Workers put the jobs with their own rights, so the caller's right is checked here.
    value = pack_single(b"", key=None, headers=None, timestamp=None, limits=ask.limits)
    ask.principal.check(PutMessages(body.queue, value))
    store = ScheduleStore(ask)
    state = await store.store(wanted)
    return Reply(await store.get(schedule), 201 if state == "created" else 200)


@endpoint("GET /schedules")
async def list_schedules(ask: Ask, query: UpcomingQuery) -> Schedules:
    """List the schedules of jobs in the order of their names."""
    return Schedules(
        schedules=await ScheduleStore(on_jobs(ask, "read")).list(upcoming=query.upcoming)
    )


@endpoint("GET /schedules/{schedule}", errors=(404,))
async def get_schedule(ask: Ask, schedule: str, query: UpcomingQuery) -> ScheduleInfo:
    """Show a schedule."""
    return await ScheduleStore(on_jobs(ask, "read")).get(schedule, upcoming=query.upcoming)


@endpoint("POST /schedules/{schedule}/pause", errors=(404, 409))
async def pause_schedule(ask: Ask, schedule: str) -> ScheduleInfo:
    """Stop a schedule until it is resumed; its ticks meanwhile do not fire later."""
    return await ScheduleStore(on_jobs(ask, "write")).pause(schedule)


@endpoint("POST /schedules/{schedule}/resume", errors=(404, 409))
async def resume_schedule(ask: Ask, schedule: str) -> ScheduleInfo:
    """Let a schedule fire again, from its first tick after now."""
    return await ScheduleStore(on_jobs(ask, "write")).resume(schedule)


@endpoint("POST /schedules/{schedule}/trigger", errors=(404, 409))
async def trigger_schedule(ask: Ask, schedule: str) -> TriggeredJob:
    """Put a job of a schedule now; its ticks stay as they are."""
    return TriggeredJob(job=await ScheduleStore(on_jobs(ask, "write")).trigger(schedule))


@endpoint("DELETE /schedules/{schedule}", errors=(409,))
async def delete_schedule(ask: Ask, schedule: str) -> Existed:
    """Delete a schedule; its jobs stay."""
    return Existed(deleted=await ScheduleStore(ask).delete(schedule))
