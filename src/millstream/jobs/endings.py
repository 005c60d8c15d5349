"""Endings: the commit that ends a job with everything that follows from its end.

The acknowledgement, the steps of the task, the next job of a chain, the record of a group and its
callback are one commit. A job without any of these is acknowledged by the worker, with others.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.command import Transact
from millstream.errors import EndMoved
from millstream.format.packing import pack_single
from millstream.jobs.chores import delete_later
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
from millstream.log.commands import Append, GetExtent, GetMetadata, ReadBlocks, SetMetadata
from millstream.queue.commands import FinishClaims
from millstream.queue.put_commands import put_one
from millstream.worker.effects import Verdict

FAILED = "failed"
"""The metadata entry of a group's log that is set once a member has failed."""

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
        outcome = MemberOutcome(membership.index, error=error, is_callback=membership.is_callback)
    steps = [finish, *_output_steps(context, FAILED)]
    yield from commit_outcome(steps, membership, outcome, context.limits)
    return True


def _output_steps(context: JobContext, how: str) -> list[Any]:
    if not context.has_output:
        return []
    return close_output(context.id, how, context.limits)


def commit_outcome(
    steps: list[Any], membership: GroupPart | None, outcome: MemberOutcome | None, limits: Limits
) -> Steps[list[Any]]:
    """Commit the steps, with the outcome of a member of a group.

    The record of the outcome names the end of the log that it expects. If another member ends at the
    same time, the commit of one fails, and is repeated with the new end.
    """
    if membership is None or outcome is None:
        answers: list[Any] = yield Transact(steps)
        return answers
    while True:
        group_steps = yield from _group_steps(membership, outcome, limits)
        if not (steps or group_steps):
            return []
        try:
            answers = yield Transact([*steps, *group_steps])
            return answers
        except EndMoved as error:
            if error.data.get("log") != membership.log:
                raise


def _group_steps(membership: GroupPart, outcome: MemberOutcome, limits: Limits) -> Steps[list[Any]]:
    """Return the steps that add an outcome to a group, and complete the group with its last one."""
    extent = yield GetExtent(membership.log, 0)
    record = pack_single(
        encode_outcome(outcome), key=None, headers=None, timestamp=None, limits=limits
    )
    append = Append(membership.log, record, expect_end=extent.end)
    if membership.is_callback:
        return [append, delete_later(membership.log, membership.keep_s, limits)]
    metadata = yield GetMetadata(membership.log)
    outcomes_before: list[MemberOutcome] = []
    is_last = extent.end + 1 >= membership.size
    if is_last or FAILED in metadata:
        outcomes_before = yield from read_outcomes(membership.log, extent.end)
    if any(earlier.index == outcome.index for earlier in outcomes_before):
        return []  # a failed member was tried again, and the first outcome counts
    steps: list[Any] = [append]
    has_failed = outcome.error is not None or any(
        earlier.error is not None for earlier in outcomes_before
    )
    if outcome.error is not None:
        steps.append(SetMetadata(membership.log, FAILED, True))
    if not is_last:
        return steps
    if membership.callback is None or (has_failed and membership.on_failure == "fail"):
        return [*steps, delete_later(membership.log, membership.keep_s, limits)]
    callback = membership.callback
    value = bytes(callback.arguments)
    return [*steps, _put(callback.queue, value, callback_headers(membership), limits)]


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
