"""Cancelling a job: a member of a chain or a group ends with its outcome in the same commit.

No worker sees a job that is cancelled before it starts. So the commit that cancels the job also adds
the outcome to the log of its group, and puts the callback if the job was the last member.
"""

from __future__ import annotations

from millstream.command import Transact
from millstream.errors import Conflict, NotFound, Truncated
from millstream.format.ids import split_id
from millstream.header import Headers
from millstream.jobs.chores import SETTLE_S, SettleMember, do_later, make_chores
from millstream.jobs.continuation import GroupPart, MemberOutcome, continuation_of
from millstream.jobs.driving import Steps
from millstream.jobs.endings import commit_outcome, failed_outcome
from millstream.jobs.job_ids import JobPlace, job_id_of
from millstream.jobs.outcomes import CANCEL_REASON
from millstream.jobs.results import CANCELLED_KIND, JobError
from millstream.limits import Limits
from millstream.log.commands import ReadBlocks
from millstream.log.model.names import NUMBER_MAX
from millstream.queue.commands import CancelMessage, CancelWaiting, FindMessage, PeekMessages
from millstream.queue.model.message import CancelOutcome, PeekState, messages_of
from millstream.queue.model.own_logs import place_of_put
from millstream.record import Record

PINNED_STATES: tuple[PeekState, ...] = ("available", "delayed", "in_flight", "failed")
"""The states of messages whose records a queue pins."""


def cancel_job(place: JobPlace, limits: Limits) -> Steps[CancelOutcome]:
    """Cancel a job: True if it does not start, "requested" if it runs, and False if it has ended."""
    record = yield from read_job(place)
    if record is not None and (membership := membership_of(record.headers)) is not None:
        return (yield from cancel_member(place, membership, limits))
    outcome: CancelOutcome = yield CancelMessage(place.queue, place.put_id, running=True)
    return outcome


def cancel_member(place: JobPlace, membership: GroupPart, limits: Limits) -> Steps[CancelOutcome]:
    """Cancel a member of a chain or a group, and add its outcome to the group if it waits."""
    cancel = CancelWaiting(place.queue, None, place.put_id)
    outcome = _cancelled(place, membership, "cancelled before it started")
    try:
        yield from commit_outcome([cancel], membership, outcome, limits)
    except Conflict:
        pass  # it runs, or has ended
    else:
        return True
    request = CancelMessage(place.queue, place.put_id, running=True)
    settle = do_later(SettleMember(job_id_of(*place)), SETTLE_S, limits)
    answers = yield Transact([request, make_chores(), settle])
    cancelled: CancelOutcome = answers[0]
    return cancelled


def settle_member(place: JobPlace, membership: GroupPart, limits: Limits) -> Steps[None]:
    """Add the outcome of a member that was cancelled while it ran, unless its worker has done so."""
    outcome = _cancelled(place, membership, CANCEL_REASON)
    yield from commit_outcome([], membership, outcome, limits)


def _cancelled(place: JobPlace, membership: GroupPart, reason: str) -> MemberOutcome:
    error = JobError(kind=CANCELLED_KIND, message=reason)
    return failed_outcome(membership, error, job_id_of(*place))


def membership_of(headers: Headers) -> GroupPart | None:
    """Return the place of a job in its chain or group; None for a plain job."""
    continuation = continuation_of(headers)
    return None if continuation is None else continuation.membership


def read_job(place: JobPlace) -> Steps[Record | None]:
    """Return the record of a job; None for a deleted or unknown record."""
    log, offset = place_of_put(*place)
    if offset >= NUMBER_MAX:
        return None
    try:
        blocks = yield ReadBlocks(log, offset, offset + 1, NUMBER_MAX)
    except NotFound:
        return None
    except Truncated:
        return (yield from _read_pinned(place))
    return next((record for block in blocks for record in block.records()), None)


def _read_pinned(place: JobPlace) -> Steps[Record | None]:
    """Return the record of an unfinished job before the start of its log; None if the job has ended.

    The log of a queue moves its start beyond few old messages, and the queue pins their records.
    """
    try:
        fate = yield FindMessage(place.queue, place.put_id)
        if fate.claim_id is None or fate.state not in PINNED_STATES:
            return None
        after = fate.claim_id - 1 if split_id(fate.claim_id)[1] else -1
        for state in PINNED_STATES:  # the state may have changed since
            command = PeekMessages(place.queue, state, 1, after, route=False)
            for message in messages_of((yield command)):
                if message.claim_id == fate.claim_id:
                    return Record(
                        message.log,
                        message.offset,
                        message.value,
                        message.timestamp,
                        message.key,
                        message.headers,
                    )
    except NotFound:
        pass
    return None
