"""The work of chores: see `chores`."""

from __future__ import annotations

from typing import Any

from millstream.errors import NotFound
from millstream.jobs.cancelling import membership_of, read_job, settle_member
from millstream.jobs.chores import (
    AGAIN_S_MIN,
    SETTLE_S,
    ExpireGroup,
    ExpireOutput,
    SettleMember,
    decode_chore,
)
from millstream.jobs.description import UNFINISHED
from millstream.jobs.driving import Steps
from millstream.jobs.endings import read_outcomes
from millstream.jobs.job_ids import place_of_job
from millstream.jobs.output import output_of
from millstream.limits import Limits
from millstream.log.commands import DeleteLog, DescribeLog, GetMetadata
from millstream.queue.commands import FindMessage
from millstream.queue.model.message import Retry
from millstream.record import wall_ms_of


def chore_steps(value: bytes | None, limits: Limits, now_ms: int) -> Steps[None]:
    """Do a chore, or raise `Retry` with the time after which it is to be tried again."""
    match decode_chore(value):
        case ExpireGroup() as chore:
            yield from _expire_group(chore, now_ms)
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


def _expire_group(chore: ExpireGroup, now_ms: int) -> Steps[None]:
    info = yield DescribeLog(chore.log)
    if info is None:
        return
    shape = (yield GetMetadata(chore.log)).get("group")
    if shape is not None and not (yield from _has_ended(chore.log, shape, info.end_offset)):
        raise Retry("the group has not ended", after=max(AGAIN_S_MIN, chore.keep_s))
    left_s = (info.timestamp - now_ms) / 1000 + chore.keep_s
    if left_s > 0:
        raise Retry("the result has not expired", after=max(AGAIN_S_MIN, left_s))
    yield DeleteLog(chore.log)


def _has_ended(log: str, shape: dict[str, Any], end: int) -> Steps[bool]:
    """Return whether a group of this shape puts no more jobs."""
    if end < shape["size"] or not shape["has_callback"]:
        return bool(end >= shape["size"])
    outcomes = yield from read_outcomes(log, end)
    is_refused = shape["on_failure"] == "fail" and any(each.error for each in outcomes)
    return is_refused or any(each.is_callback for each in outcomes)


def _settle(job: str, limits: Limits) -> Steps[None]:
    fate = yield from _fate_of(job)
    if fate is None:
        return
    if fate.state == "in_flight":
        raise Retry("the job has not ended", after=SETTLE_S)
    place = place_of_job(job)
    record = yield from read_job(place)
    membership = None if record is None else membership_of(record.headers)
    if fate.state == "cancelled" and membership is not None:
        yield from settle_member(place, membership, limits)


def _fate_of(job: str) -> Steps[Any]:
    """Return the fate of a job; None for a job of a deleted queue."""
    place = place_of_job(job)
    try:
        return (yield FindMessage(place.queue, place.put_id))
    except NotFound:
        return None
