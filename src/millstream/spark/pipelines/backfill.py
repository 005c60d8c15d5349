"""Backfills: new queues get copies of archived records that their logs no longer hold.

Truncated records cannot be assigned by reference. So the backfill puts copies into the queue's
inbox, in one transaction, once. Before the first copy it notes the end of the copies with the
inbox, and every later run uses the noted end.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from millstream.errors import Conflict
from millstream.log import commands as c
from millstream.queue.model.message import QueueInfo
from millstream.queue.model.own_logs import inbox_of
from millstream.queue.service.assignment import Assignment, AssignMessages
from millstream.queue.service.bulk_reads import ListPositions
from millstream.record import wall_ms_of
from millstream.spark.archive.archive import Archive
from millstream.spark.failures import point
from millstream.spark.pipelines.target import PipelineRun
from millstream.spark.source.losses import TellLoss

if TYPE_CHECKING:
    from millstream.command import Session

NOTE = "backfilled"
"""The metadata entry of an inbox: the queue that was backfilled, and up to which offsets."""


def backfill_queues(
    job: PipelineRun,
    session: Session,
    infos: dict[str, QueueInfo],
    archive: str | os.PathLike[str],
    tell: TellLoss | None = None,
) -> dict[str, int]:
    """Copy to each new queue the archived records before its start; count the copies.

    A gap in the archive ends the backfill; with `tell` the gap is skipped and reported.
    """
    source = Archive(archive)
    source.check()
    copied = {}
    for number, (name, info) in enumerate(infos.items()):
        job.progress("backfill", number, len(infos))
        stops = _note(session, info, source)
        stops = {log: stop for log, stop in stops.items() if stop}
        if stops:
            copied[name] = _copy(job, session, info, source, stops, allow_gaps=tell is not None)
            if tell is not None:
                for loss in source.losses(stops):
                    tell(loss)
        for position in session.execute(ListPositions(name)):
            if position.position < position.start and stops.get(position.log, 0) >= position.start:
                passed = Assignment(name, position.log, position.position, position.start, [])
                session.execute(AssignMessages([passed]))
    return copied


def _note(session: Session, info: QueueInfo, archive: Archive) -> dict[str, int]:
    """Up to which offset of each log a queue is backfilled; fixed by the first run."""
    inbox = inbox_of(info.name)
    noted: dict[str, Any] | None = session.execute(c.GetMetadata(inbox)).get(NOTE)
    if noted is not None and noted["created"] == wall_ms_of(info.created):
        stops: dict[str, int] = noted["stops"]
        return stops
    if info.available + info.delayed + info.in_flight + info.done + info.failed:
        raise Conflict(
            f"queue {info.name!r} has messages already, and some of the archive may be among them; "
            "make a new queue to backfill"
        )
    stops = {}
    for position in session.execute(ListPositions(info.name)):
        segments = archive.segments(position.log)
        if segments:
            stops[position.log] = min(max(position.position, position.start), segments[-1].stop)
    note = {"created": wall_ms_of(info.created), "stops": stops}
    session.execute(c.SetMetadata(inbox, NOTE, note, expect=noted, compare=True))
    return stops


def _copy(
    job: PipelineRun,
    session: Session,
    info: QueueInfo,
    archive: Archive,
    stops: dict[str, int],
    *,
    allow_gaps: bool,
) -> int:
    inbox = inbox_of(info.name)
    before = session.execute(c.GetBounds(inbox))[1]
    rows = job.read(
        list(stops),
        archive=archive.path,
        endingOffsets=stops,
        typedHeaders=True,
        failOnDataLoss=not allow_gaps,
        **({"filter": info.spec.filter} if info.spec.filter else {}),
    ).orderBy("appendTimestamp", "topic", "offset")
    point("backfill noted")
    copies = rows.select("key", "value", "timestamp", "headers")
    app = f"backfill:{info.name}:{wall_ms_of(info.created)}"
    job.append(copies, queue=info.name, txnAppId=app, txnVersion=0)
    point("backfill written")
    return int(session.execute(c.GetBounds(inbox))[1]) - before
