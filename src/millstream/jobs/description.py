"""Jobs as operators see them: one job in full, pages of jobs, and counts by task; pure values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from msgspec import Raw, Struct, field

from millstream.format.json_text import is_json_text
from millstream.header import Headers
from millstream.jobs.continuation import TASK_HEADER
from millstream.jobs.job_ids import job_id_of
from millstream.jobs.results import JobError, decode_error
from millstream.jobs.schedule import SCHEDULE_HEADER
from millstream.queue.model.message import Fate, Message, PeekState, State, Try
from millstream.record import Record, moment

ListedState = Literal["waiting", "scheduled", "running", "done", "failed", "cancelled"]
"""The states by which jobs are listed. `scheduled`: for later, or before the next attempt."""

PEEKED: dict[ListedState, PeekState] = {
    "waiting": "available",
    "scheduled": "delayed",
    "running": "in_flight",
    "done": "done",
    "failed": "failed",
    "cancelled": "cancelled",
}
"""The state of the message in the queue, by the state of the job."""

UNFINISHED: tuple[PeekState, ...] = ("available", "delayed", "in_flight")
"""The states of messages of unfinished jobs, in the order in which a job goes through them."""

SHOWN: dict[State, ListedState] = {peeked: state for state, peeked in PEEKED.items()}


def null() -> Raw:
    """Return JSON's null."""
    return Raw(b"null")


class JobInfo(Struct, kw_only=True):
    """A job in a list."""

    id: str
    queue: str
    task: str
    state: ListedState
    arguments: Raw
    """The arguments by parameter, as JSON."""
    put: datetime
    """When the job was put, in UTC."""
    attempts: int
    """How many attempts have begun."""
    until: datetime | None = None
    """When the job is due, when its lease ends, or when it ended; in UTC."""
    reason: str = ""
    """Why the job failed, or why its last attempt ended: the first line."""
    schedule: str = ""
    """The schedule that put the job."""


class JobDetail(JobInfo, kw_only=True):
    """A job with attempts, progress, result or error, and output."""

    is_cancel_requested: bool = False
    """Whether the running job is asked to end."""
    tries: list[Try] = field(default_factory=list)
    """The attempts, oldest first."""
    progress: Raw = field(default_factory=null)
    """The last progress that the task noted, as JSON; null: none."""
    result: Raw = field(default_factory=null)
    """The result of a done job, as JSON."""
    error: JobError | None = None
    """The error of the last attempt, with its traceback."""
    output: JobOutput | None = None
    """The output; null: the job has written none."""


class JobOutput(Struct, kw_only=True):
    """The log with the output of a job."""

    log: str
    start_offset: int
    end_offset: int


class JobPage(Struct, kw_only=True):
    """Jobs in a state, by queue, and newest first within a queue."""

    jobs: list[JobInfo]
    next: str | None
    """Pass this as `after` for the next page; null: this is the last page."""


class TaskCounts(Struct, kw_only=True):
    """The jobs of a task, by state."""

    task: str
    queue: str
    waiting: int = 0
    scheduled: int = 0
    running: int = 0
    failed: int = 0
    done: int = 0
    cancelled: int = 0
    """Jobs that were cancelled before they started."""
    is_estimated: bool = False
    """Whether a state has so many jobs that its number is estimated from the newest 1,000."""


def describe_peeked(message: Message, state: ListedState) -> JobInfo | None:
    """Return a message of a peek as a job; None for a message that is no job."""
    task = message.headers.get(TASK_HEADER)
    if not isinstance(task, str) or message.id is None:
        return None
    return JobInfo(
        id=job_id_of(message.queue, message.id),
        queue=message.queue,
        task=task,
        state=state,
        arguments=as_raw(message.value),
        put=moment(message.timestamp),
        attempts=message.attempt,
        until=message.until,
        reason=first_line(message.reason),
        schedule=_schedule_of(message.headers),
    )


def describe_job(
    id: str, queue: str, record: Record, fate: Fate, tries: Sequence[Try]
) -> JobDetail | None:
    """Return a job in full; None for a message that is no job, or that is unknown."""
    task = record.headers.get(TASK_HEADER)
    state = SHOWN.get(fate.state)
    if not isinstance(task, str) or state is None:
        return None
    has_error = fate.error is not None or state == "failed"
    return JobDetail(
        id=id,
        queue=queue,
        task=task,
        state=state,
        arguments=as_raw(record.value),
        put=moment(record.timestamp),
        attempts=fate.attempts,
        until=fate.until,
        reason=first_line(fate.reason),
        schedule=_schedule_of(record.headers),
        is_cancel_requested=fate.is_cancel_requested,
        tries=list(tries),
        progress=as_raw(fate.progress),
        result=as_raw(fate.result),
        error=decode_error(fate.error, fate.reason) if has_error else None,
    )


def as_raw(value: bytes | None) -> Raw:
    """Return JSON as it was written; null for a value that is no JSON."""
    return Raw(value) if value and is_json_text(value) else null()


def first_line(reason: str) -> str:
    """Return the first line of a reason; the lines after it are a traceback."""
    return reason.strip().partition("\n")[0].strip()


def _schedule_of(headers: Headers) -> str:
    schedule = headers.get(SCHEDULE_HEADER)
    return schedule if isinstance(schedule, str) else ""
