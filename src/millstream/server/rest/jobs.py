"""Jobs over REST: lists by task and state, single jobs, cancel, retry, and limits per key.

The permissions of these endpoints have the noun `job`: `job:read:QUEUE` shows the jobs of a queue,
and `job:write:QUEUE` cancels and retries them, and changes limits per key. It allows nothing else
on the queue, so a person who watches jobs need not be able to put, claim or purge messages.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from millstream.aio.stored_jobs import StoredJobs, no_job
from millstream.command import Action, Command, Transact
from millstream.errors import NotFound
from millstream.jobs.description import (
    JobDetail,
    JobPage,
    ListedState,
    TaskCounts,
)
from millstream.jobs.job_ids import place_of_job
from millstream.jobs.key_limits import PER_MINUTE_MAX, PER_MINUTE_MIN, KeyLimit
from millstream.jobs.output import OUTPUT
from millstream.jobs.results import JobError
from millstream.queue import commands as c
from millstream.queue.model.spec import IN_FLIGHT_MAX
from millstream.server.auth.need import Need, need_of_log
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints, Reply
from millstream.server.rest.payload import Wait

PAGE_MAX = 1_000


class JobsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """The jobs to list."""

    state: ListedState = "waiting"
    """`scheduled`: for later, or before the next attempt."""
    task: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    """Only jobs of this task. A page may be short then; continue at `next`."""
    queue: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """Only jobs of this queue; default: jobs of every queue that was made for jobs."""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
    after: Annotated[str, Meta(min_length=1, max_length=300)] | None = None
    """The `next` of the page before."""


class TaskList(Struct, kw_only=True):
    """The tasks that have jobs."""

    tasks: list[TaskCounts]
    """By task and queue."""


class JobWaitQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """How long to wait for the end of a job."""

    wait: Wait = 0.0
    """Seconds to wait until the job is done, failed or cancelled."""


class JobResult(Struct, kw_only=True, omit_defaults=True):
    """The state of a job, and the result or the error of an ended job."""

    id: str
    state: ListedState
    result: Raw | UnsetType = UNSET
    """The result of a done job, as JSON."""
    error: JobError | UnsetType = UNSET
    """The error of a failed job."""


class CancelledJob(Struct, kw_only=True):
    """The answer to a cancel."""

    id: str
    cancelled: bool
    """Whether the job is cancelled, and so does not start."""
    requested: bool
    """Whether the job runs, and is asked to end."""
    state: ListedState


class KeyLimitBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The limits of one key; without both limits, the limits of the task hold again."""

    queue: Annotated[str, Meta(min_length=1, max_length=255)]
    """The queue of the task."""
    key: str
    """The key, as in the arguments of the jobs."""
    running: Annotated[int, Meta(ge=1, le=IN_FLIGHT_MAX)] | None = None
    """Most jobs of the key that run at a time; null: as the task says."""
    per_minute: Annotated[float, Meta(ge=PER_MINUTE_MIN, le=PER_MINUTE_MAX)] | None = None
    """Most jobs of the key that start in a minute; null: as the task says."""


class KeyLimitList(Struct, kw_only=True):
    """The keys with limits of their own."""

    limits: list[KeyLimit]
    """By queue and key."""


endpoint = Endpoints("jobs")


def on_jobs(ask: Ask, action: Action) -> Ask:
    """Return the request; its commands need the right on jobs, not the rights on their queue.

    A transaction needs the right on the queue of each step.
    """

    def need_of(command: Command[Any]) -> Need:
        steps = command.steps if isinstance(command, Transact) else [command]
        *others, last = (Need("job", action, _queue_of(step)) for step in steps)
        for need in others:
            ask.principal.require(need)
        return last

    return ask.by_right(need_of)


def _on_job(ask: Ask, action: Action, job: str) -> Ask:
    """Return the request; its commands need the right on the job, also commands about the group."""
    need = Need("job", action, place_of_job(job).queue)
    return ask.by_right(lambda command: need)


def _queue_of(command: Command[Any]) -> str:
    """Return the queue of a command about jobs: it names the queue, its log, or the output of a job."""
    queue = getattr(command, "queue", None)
    if queue is not None:
        return str(queue)
    log = str(getattr(command, "log", ""))
    if log.startswith(OUTPUT):
        return place_of_job(log.removeprefix(OUTPUT)).queue
    return need_of_log("read", log).name


@endpoint("GET /jobs", errors=(404,))
async def list_jobs(ask: Ask, query: JobsQuery) -> JobPage:
    """List jobs in a state, by task and queue; newest first within a queue.

    Needs `job:read` on a queue; jobs of other queues are left out.
    """
    return await StoredJobs(on_jobs(ask, "read")).page(
        query.state, task=query.task, queue=query.queue, limit=query.limit, after=query.after
    )


@endpoint("GET /jobs/tasks")
async def list_tasks(ask: Ask) -> TaskList:
    """Count jobs by task and state.

    A state with more than 1,000 jobs in a queue is estimated from the newest 1,000. Needs `job:read`
    on a queue; jobs of other queues are left out.
    """
    return TaskList(tasks=await StoredJobs(on_jobs(ask, "read")).tasks())


@endpoint("GET /jobs/{job}", errors=(404,))
async def get_job(ask: Ask, job: str, query: JobWaitQuery) -> JobDetail:
    """Show a job: arguments, state, attempts, progress, result or error, and its output.

    With `wait`, the answer comes once the job has ended, or after this time. Needs `job:read`.
    """
    asked = on_jobs(ask, "read")
    await _wait(asked, job, query)
    return await StoredJobs(asked).get(job)


@endpoint(
    "GET /jobs/{job}/result",
    description="The job has ended",
    also={202: "The job has not ended yet"},
    errors=(404,),
)
async def get_job_result(ask: Ask, job: str, query: JobWaitQuery) -> Reply[JobResult]:
    """Return the result of a job, or its error; `wait` waits for the end of the job.

    Needs `job:read`.
    """
    asked = on_jobs(ask, "read")
    await _wait(asked, job, query)
    detail = await StoredJobs(asked).get(job)
    answer = JobResult(id=job, state=detail.state)
    if detail.state == "done":
        answer.result = detail.result
    elif detail.state == "failed" and detail.error is not None:
        answer.error = detail.error
    return Reply(answer, 200 if detail.state in ("done", "failed", "cancelled") else 202)


@endpoint("POST /jobs/{job}/cancel", errors=(404,))
async def cancel_job(ask: Ask, job: str) -> CancelledJob:
    """Cancel a job: a job that waits never starts, and a job that runs is asked to end.

    A repeat of the request succeeds. Needs `job:write`.
    """
    store = StoredJobs(_on_job(ask, "write", job))
    outcome = await store.cancel(job)
    return CancelledJob(
        id=job,
        cancelled=outcome is True,
        requested=outcome == "requested",
        state=(await store.get(job)).state,
    )


@endpoint("POST /jobs/{job}/retry", errors=(404, 409))
async def retry_job(ask: Ask, job: str) -> JobDetail:
    """Try a failed job again, with all attempts of its task.

    The answer is 409 if the job is not failed. Needs `job:write`.
    """
    store = StoredJobs(on_jobs(ask, "write"))
    await store.retry(job)
    return await store.get(job)


async def _wait(ask: Ask, id: str, query: JobWaitQuery) -> None:
    """Wait for the end of a job, if the request asks for it."""
    if wait_ms := ask.wait_ms(query.wait):
        place = place_of_job(id)
        try:
            await ask.unless_over(c.WaitForMessage(place.queue, place.put_id, wait_ms))
        except NotFound:
            raise no_job(id) from None


@endpoint("GET /jobs/limits")
async def list_key_limits(ask: Ask) -> KeyLimitList:
    """List the keys that have limits of their own, instead of the limits of their task.

    Needs `job:read` on a queue; keys of other queues are left out.
    """
    stored = StoredJobs(on_jobs(ask, "read"))
    return KeyLimitList(limits=await stored.limits(await stored.limited_queues()))


@endpoint("PUT /jobs/limits", errors=(404,))
async def limit_key(ask: Ask, body: KeyLimitBody) -> KeyLimitList:
    """Give one key limits of its own, from now on; without limits, remove them.

    Needs `job:write` on the queue.
    """
    stored = StoredJobs(on_jobs(ask, "write"))
    if body.running is None and body.per_minute is None:
        await stored.remove_limit(body.key, queues=[body.queue])
    else:
        await stored.limit(
            body.key, running=body.running, per_minute=body.per_minute, queues=[body.queue]
        )
    return KeyLimitList(limits=await stored.limits([body.queue]))
