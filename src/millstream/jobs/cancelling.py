"""Cancelling a job: a member of a chain or a group ends with its outcome in the same commit.

No worker sees a job that is cancelled before it starts. So the commit that cancels the job also adds
the outcome to the log of its group, and puts the callback if the job was the last member.
"""

from __future__ import annotations

from typing import Any

from millstream.command import Transact
from millstream.errors import Conflict, EndMoved, NotFound, Truncated
from millstream.header import Headers
from millstream.jobs.chores import SETTLE_S, SettleMember, do_later, make_chores
from millstream.jobs.continuation import GroupPart, MemberOutcome, continuation_of
from millstream.jobs.driving import Steps
from millstream.jobs.endings import commit_outcome
from millstream.jobs.job_ids import JobPlace, job_id_of
from millstream.jobs.outcomes import CANCEL_REASON
from millstream.jobs.results import CANCELLED_KIND, JobError
from millstream.limits import Limits
from millstream.log.commands import ReadBlocks
from millstream.log.model.names import NUMBER_MAX
from millstream.queue.commands import CancelMessage, CancelWaiting
from millstream.queue.model.message import CancelOutcome
from millstream.queue.model.own_logs import place_of_put


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
    outcome = _cancelled(membership, "cancelled before it started")
    try:
        yield from commit_outcome([cancel], membership, outcome, limits)
    except Conflict as conflict:
        if isinstance(conflict, EndMoved):
            raise
    else:
        return True
    settle = do_later(SettleMember(job_id_of(*place)), SETTLE_S, limits)
    request = CancelMessage(place.queue, place.put_id, running=True)
    answers = yield Transact([request, make_chores(), settle])
    cancelled: CancelOutcome = answers[0]
    return cancelled


def settle_member(membership: GroupPart, limits: Limits) -> Steps[None]:
    """Add the outcome of a member that was cancelled while it ran, unless its worker has done so."""
    outcome = _cancelled(membership, CANCEL_REASON)
    yield from commit_outcome([], membership, outcome, limits)


def _cancelled(membership: GroupPart, reason: str) -> MemberOutcome:
    error = JobError(kind=CANCELLED_KIND, message=reason)
    return MemberOutcome(membership.index, error=error, is_callback=membership.is_callback)


def membership_of(headers: Headers) -> GroupPart | None:
    """Return the place of a job in its chain or group; None for a plain job."""
    continuation = continuation_of(headers)
    return None if continuation is None else continuation.membership


def read_job(place: JobPlace) -> Steps[Any]:
    """Return the record of a job; None for a deleted or unknown record."""
    log, offset = place_of_put(*place)
    if offset >= NUMBER_MAX:
        return None
    try:
        blocks = yield ReadBlocks(log, offset, offset + 1, NUMBER_MAX)
    except (NotFound, Truncated):
        return None
    return next((record for block in blocks for record in block.records()), None)
