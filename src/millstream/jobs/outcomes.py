"""Outcomes: how an attempt of a job ends after an error; pure."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence

from millstream.jobs.definition import TaskDefinition
from millstream.jobs.results import UnencodableResult, encode_error
from millstream.queue.model.message import Reject, Retry, Try
from millstream.record import to_ms
from millstream.worker.effects import Verdict
from millstream.worker.reason import reason_of
from millstream.worker.shift import CANCELLED, STOPPED

UNKNOWN_TASK = "unknown task"
UNKNOWN_DELAY_S = 30.0
"""How long a job waits that a worker did not know: a different worker may know the task."""

CANCEL_REASON = "cancelled while it ran"

_NOT_COUNTED = (UNKNOWN_TASK, STOPPED, CANCELLED)
"""The beginnings of reasons of attempts in which the task did not run."""


class WrongArguments(Exception):
    """The stored arguments of a job do not fit its task any more."""


class AttemptsUsed(Exception):
    """Every attempt of a job ended without a result, because workers died or lost leases."""


def unknown_task(name: object) -> Verdict:
    """Return the end of an attempt at a job whose task the worker does not know."""
    return Verdict("nack", f"{UNKNOWN_TASK} {name!r:.200}", UNKNOWN_DELAY_S)


def is_hopeless(error: BaseException, task: TaskDefinition) -> bool:
    """Whether another attempt would not help."""
    if isinstance(error, Reject | UnencodableResult | AttemptsUsed | WrongArguments):
        return True
    if isinstance(error, Retry | CancelledError):
        return False
    return not isinstance(error, task.options.retry_on)


def counted_attempts(tries: Sequence[Try]) -> int:
    """Return the number of attempts in which the task ran."""
    return sum(not attempt.reason.startswith(_NOT_COUNTED) for attempt in tries)


def last_reason(tries: Sequence[Try]) -> str:
    """Return why the last attempt ended in which the task ran."""
    reasons = [attempt.reason for attempt in tries if attempt.reason]
    counted = [reason for reason in reasons if not reason.startswith(_NOT_COUNTED)]
    return counted[-1] if counted else "no reason is known"


def verdict_of(
    error: BaseException, task: TaskDefinition, attempt: int, luck: float, *, is_last: bool
) -> Verdict:
    """Return how an attempt ends that raised an error; `luck` is a random number in [0, 1)."""
    reason, note = reason_of(error), encode_error(error)
    if is_last or is_hopeless(error, task):
        return Verdict("fail", reason, error=note)
    if isinstance(error, Retry) and error.after is not None:
        delay_s = to_ms(error.after) / 1000
    else:
        delay_s = task.options.backoff.wait_ms(attempt, luck) / 1000
    return Verdict("nack", reason, delay_s, note)
