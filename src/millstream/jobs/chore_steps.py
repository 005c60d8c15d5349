"""The work of chores: see `chores`."""

from __future__ import annotations

from typing import Any

from millstream.errors import NotFound
from millstream.jobs.cancelling import membership_of, read_job, settle_member
from millstream.jobs.chores import (
    AGAIN_S_MIN,
    SETTLE_S,
    DeleteOutput,
    ExpireOutput,
    SettleMember,
    decode_chore,
)
from millstream.jobs.driving import Steps
from millstream.jobs.job_ids import place_of_job
from millstream.jobs.output import output_of
from millstream.limits import Limits
from millstream.log.commands import DeleteLog
from millstream.queue.commands import FindMessage
from millstream.queue.model.message import Retry
from millstream.record import wall_ms_of

UNFINISHED = ("available", "delayed", "in_flight")


def chore_steps(value: bytes | None, limits: Limits, now_ms: int) -> Steps[None]:
    """Do a chore, or raise `Retry` with the time after which it is to be tried again."""
    match decode_chore(value):
        case DeleteOutput(log=log):
            yield DeleteLog(log)
        case ExpireOutput() as chore:
            yield from _expire(chore, now_ms)
        case SettleMember(job=job):
            yield from _settle(job, limits)


def _expire(chore: ExpireOutput, now_ms: int) -> Steps[None]:
    fate = yield from _fate_of(chore.job)
    if fate is not None and fate.state in UNFINISHED:
        raise Retry("the job has not ended", after=max(AGAIN_S_MIN, chore.keep_s))
    if fate is not None and fate.until is not None:
        left_s = (wall_ms_of(fate.until) - now_ms) / 1000 + chore.keep_s
        if left_s > 0:
            raise Retry("the result has not expired", after=max(AGAIN_S_MIN, left_s))
    yield DeleteLog(output_of(chore.job))


def _settle(job: str, limits: Limits) -> Steps[None]:
    fate = yield from _fate_of(job)
    if fate is None:
        return
    if fate.state == "in_flight":
        raise Retry("the job has not ended", after=SETTLE_S)
    record = yield from read_job(place_of_job(job))
    membership = None if record is None else membership_of(record.headers)
    if fate.state == "cancelled" and membership is not None:
        yield from settle_member(membership, limits)


def _fate_of(job: str) -> Steps[Any]:
    """Return the fate of a job; None for a job of a deleted queue."""
    place = place_of_job(job)
    try:
        return (yield FindMessage(place.queue, place.put_id))
    except NotFound:
        return None
