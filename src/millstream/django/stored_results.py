"""Results of tasks as Django shows them, read from the queues of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from millstream.django.execution import task_by_name
from millstream.django.framework import base, exceptions
from millstream.django.result_ids import ID_HEADER, ResultId
from millstream.errors import NotFound, Truncated
from millstream.jobs.cancelling import PINNED_STATES, read_job
from millstream.jobs.continuation import TASK_HEADER
from millstream.jobs.driving import drive
from millstream.jobs.job_ids import JobPlace
from millstream.jobs.results import decode_error
from millstream.queue.model.message import Fate, Message, State, Try
from millstream.queue.model.own_logs import LATER_ID, inbox_of, later_of, place_of_put
from millstream.record import Record, moment
from millstream.threads.database import Millstream
from millstream.threads.queue import Queue

_Status = base.TaskResultStatus

PAGE = 1_000
"""Messages that a search reads at once."""

_STATUS: dict[State, Any] = {
    "available": _Status.READY,
    "delayed": _Status.READY,
    "in_flight": _Status.RUNNING,
    "done": _Status.SUCCESSFUL,
    "failed": _Status.FAILED,
    "cancelled": _Status.FAILED,
}


class StoredArguments(msgspec.Struct):
    """The arguments of a task, as its message holds them."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTask:
    """The message of a task."""

    task: str
    value: bytes
    put_id: int | None = None
    """None for a message in the SQL inbox."""
    enqueued_at: datetime | None = None


def next_put_id(ms: Millstream, queue: str, *, is_for_later: bool) -> int:
    """Return the id that the next message of a queue will have, or a smaller id."""
    log = later_of(queue) if is_for_later else inbox_of(queue)
    try:
        end = ms.log(log).end_offset()
    except NotFound:
        end = 0
    return end + (LATER_ID if is_for_later else 0)


def find_stored(ms: Millstream, id: ResultId) -> StoredTask | None:
    """Find the message of a result; None if it does not exist, or no longer."""
    if id.token:
        return _find_by_token(ms, id)
    record = drive(read_job(JobPlace(id.queue, id.put_id)), ms.session.execute)
    return None if record is None else _stored_task(record, id.put_id)


def _find_by_token(ms: Millstream, id: ResultId) -> StoredTask | None:
    """Find the message with a token, in its log or among the messages that the queue pins."""
    log_name, offset = place_of_put(id.queue, id.put_id)
    log, queue = ms.log(log_name), ms.queue(id.queue)
    try:
        start = log.start_offset()
        for record in log.read(max(offset, start)):
            if record.headers.get(ID_HEADER) == str(id):
                return _stored_task(record, id.put_id - offset + record.offset)
        for state in PINNED_STATES if offset < start else ():
            after = -1
            while page := queue.peek(PAGE, state=state, after=after):
                after = page[-1].claim_id
                for message in page:
                    if message.headers.get(ID_HEADER) == str(id):
                        return _stored_task(message, message.id)
    except (NotFound, Truncated):
        pass
    return None


def _stored_task(record: Record | Message, put_id: int | None) -> StoredTask:
    return StoredTask(
        task=str(record.headers.get(TASK_HEADER, "")),
        value=record.value or b"{}",
        put_id=put_id,
        enqueued_at=moment(record.timestamp),
    )


def result_of(queue: Queue, id: ResultId, stored: StoredTask, alias: str, queue_name: str) -> Any:
    """Return the result that Django shows for a stored task."""
    task = task_by_name(stored.task)
    if task is None:
        raise exceptions.TaskResultDoesNotExist(
            f"{id} is a job of {stored.task!r}, which is no task of this project"
        )
    fate, tries = Fate(state="available"), []
    if stored.put_id is not None:
        fate = queue.message(stored.put_id)
        if fate.state == "unknown":
            raise exceptions.TaskResultDoesNotExist(str(id))
        tries = [] if fate.claim_id is None else queue.attempts(fate.claim_id)
    arguments = msgspec.json.decode(stored.value, type=StoredArguments)
    result = base.TaskResult(
        task=task.using(queue_name=queue_name, backend=alias),
        id=str(id),
        status=_STATUS[fate.state],
        enqueued_at=stored.enqueued_at,
        started_at=tries[0].claimed if tries else None,
        last_attempted_at=tries[-1].claimed if tries else None,
        finished_at=_finished_at(fate, tries),
        args=arguments.args,
        kwargs=arguments.kwargs,
        backend=alias,
        errors=_errors(fate),
        worker_ids=[attempt.consumer for attempt in tries],
    )
    if fate.state == "done" and fate.result is not None:
        object.__setattr__(result, "_return_value", msgspec.json.decode(fate.result))
    return result


def _finished_at(fate: Fate, tries: Sequence[Try]) -> datetime | None:
    if not fate.is_over:
        return None
    return tries[-1].ended if tries else fate.until


def _errors(fate: Fate) -> list[Any]:
    """Return the error of the last attempt, if it failed."""
    if fate.error is None and fate.state != "failed":
        return []
    error = decode_error(fate.error, fate.reason)
    path = f"{error.module or 'builtins'}.{error.kind or 'Exception'}"
    text = "\n".join(["Traceback (most recent call last):", error.trace]) if error.trace else ""
    summary = ": ".join(part for part in (error.kind, error.message) if part)
    lines = [line for line in (text, summary) if line]
    return [base.TaskError(exception_class_path=path, traceback="\n".join(lines))]
