"""Endings: the commit that ends a job with everything that follows from its end.

The acknowledgement, the steps of the task, the next job of a chain, the record of a group and its
callback are one commit. A job without any of these is acknowledged by the worker, with others.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.command import Transact
from millstream.format.packing import pack_single
from millstream.jobs.context import JobContext
from millstream.jobs.continuation import (
    GroupPart,
    MemberOutcome,
    callback_headers,
    continuation_of,
    decode_outcome,
    encode_outcome,
)
from millstream.jobs.driving import Steps
from millstream.jobs.output import close_output
from millstream.jobs.results import CANCELLED_KIND, JobError, decode_error
from millstream.limits import Limits
from millstream.log.commands import Append, ReadBlocks
from millstream.queue.commands import EndMember, FinishClaims
from millstream.queue.put_commands import put_one
from millstream.worker.effects import Verdict

READ_BYTES_MAX = 8_000_000


def end_done(context: JobContext, result: bytes | None) -> Steps[bool]:
    """Commit the end of a job that is done; False if the worker is to acknowledge it."""
    continuation = continuation_of(context.message.headers)
    if continuation is None and context.begun_tx is None and not context.has_output:
        return False
    tx, limits = context.tx, context.limits
    task_steps = tx.closing(context.message, result).steps
    steps = [*task_steps, *_output_steps(context, "done")]
    membership = None if continuation is None else continuation.membership
    if continuation is not None and continuation.followers:
        follower = continuation.followers[0]
        value = follower.value(result)
        headers = continuation.next_headers(value)
        steps.append(_put(follower.queue, value, headers, limits))
        membership = None
    outcome = None
    if membership is not None:
        outcome = MemberOutcome(
            membership.index, msgspec.Raw(result or b"null"), is_callback=membership.is_callback
        )
    answers = yield from commit_outcome(steps, membership, outcome, limits)
    tx.committed(answers[: len(task_steps)])
    return True


def end_failed(context: JobContext, verdict: Verdict) -> Steps[bool]:
    """Commit the end of a job that does not run again; False if the worker is to end it."""
    continuation = continuation_of(context.message.headers)
    membership = None if continuation is None else continuation.membership
    if membership is None and not context.has_output:
        return False
    message = context.message
    claims = [(message.claim_id, 1, message.attempt)]
    finish = FinishClaims(
        message.queue, claims, verdict.how, None, verdict.reason, error=verdict.error
    )
    outcome = None
    if membership is not None:
        error = decode_error(verdict.error, verdict.reason)
        if context.is_cancel_requested:
            error = JobError(kind=CANCELLED_KIND, message=verdict.reason)
        outcome = failed_outcome(membership, error, context.id)
    steps = [finish, *_output_steps(context, "failed")]
    yield from commit_outcome(steps, membership, outcome, context.limits)
    return True


def failed_outcome(membership: GroupPart, error: JobError, job: str) -> MemberOutcome:
    """Return the outcome of a job without a result; `job` is its id."""
    is_callback = membership.is_callback
    return MemberOutcome(
        membership.index, error=error, is_callback=is_callback, job=job if is_callback else ""
    )


def _output_steps(context: JobContext, how: str) -> list[Any]:
    if not context.has_output:
        return []
    return close_output(context.id, how, context.limits)


def commit_outcome(
    steps: list[Any], membership: GroupPart | None, outcome: MemberOutcome | None, limits: Limits
) -> Steps[list[Any]]:
    """Commit the steps, with the outcome of a member of a group.

    Members that end at the same time do not conflict: the commit decides which member is the last.
    """
    if membership is not None and outcome is not None:
        steps = [*steps, _end_member(membership, outcome, limits)]
    answers: list[Any] = yield Transact(steps)
    return answers


def _end_member(membership: GroupPart, outcome: MemberOutcome, limits: Limits) -> Any:
    """Return the step that adds an outcome to a group, and puts the callback with the last outcome."""
    record = pack_single(
        encode_outcome(outcome), key=None, headers=None, timestamp=None, limits=limits
    )
    log, index, size = membership.log, membership.index, membership.size
    if membership.is_callback and not outcome.is_cancelled:
        return Append(log, record)  # a failed job that is tried again has another outcome
    has_failed = outcome.error is not None
    callback = membership.callback
    if callback is None:
        return EndMember(log, record, index, max(size, index + 1), has_failed)
    headers = callback_headers(membership)
    following = pack_single(
        bytes(callback.arguments), key=None, headers=headers, timestamp=None, limits=limits
    )
    collects = membership.on_failure == "collect"
    return EndMember(
        log=log,
        outcome=record,
        member=index,
        size=size,
        has_failed=has_failed,
        queue=callback.queue,
        following=following,
        follows_failures=collects,
    )


def read_outcomes(log: str, end: int) -> Steps[list[MemberOutcome]]:
    """Return the outcomes in the log of a group."""
    outcomes: list[MemberOutcome] = []
    while len(outcomes) < end:
        blocks = yield ReadBlocks(log, len(outcomes), end, READ_BYTES_MAX)
        if not blocks:
            break
        for block in blocks:
            outcomes += [decode_outcome(record.value or b"") for record in block.records()]
    return outcomes


def _put(queue: str, value: bytes, headers: dict[str, Any], limits: Limits) -> Any:
    return put_one(
        queue,
        value,
        key=None,
        headers=headers,
        priority=None,
        group=None,
        dedup=None,
        delay=None,
        at=None,
        producer=None,
        limits=limits,
    )
