"""What a report leaves out because of damage: queues that cannot be read, headers of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.errors import CorruptionError
from millstream.queue.model.message import QueueInfo
from millstream.queue.service.bulk_reads import ListAttempts
from millstream.spark.options import read_options
from millstream.spark.pipelines.target import PipelineRun, left_out, options_of, subscription
from millstream.spark.place import reading
from millstream.spark.source.bins import Range
from millstream.spark.source.losses import Loss, TellLoss
from millstream.spark.source.planning import find_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.command import Session

ATTEMPTS_PER_PAGE = 1_000


def readable_queues(
    session: Session, infos: Sequence[QueueInfo], tell: TellLoss
) -> list[QueueInfo]:
    """The queues whose attempts can be read to the end; of the others `tell` hears."""
    readable = []
    for info in infos:
        after = -1
        try:
            while page := session.execute(ListAttempts(info.name, ATTEMPTS_PER_PAGE, after)):
                after = page[-1].claim_id
        except CorruptionError as error:
            tell(left_out(info.name, error))
        else:
            readable.append(info)
    return readable


def header_losses(job: PipelineRun, attempts: DataFrame, logs: Sequence[str]) -> list[Loss]:
    """Return records with attempts and damaged headers; truncated records are no loss."""
    from pyspark.sql import functions as f

    lost: list[Loss] = []
    chosen = {**options_of(job.place), **subscription(logs), "failOnDataLoss": "false"}
    with reading(job.place) as session:
        infos = find_logs(session, read_options(chosen), tell=lost.append)
    ranges = []
    for log, first, last in (
        attempts.groupBy("topic").agg(f.min("offset"), f.max("offset")).collect()
    ):
        info = infos.get(log)
        if info is not None:
            start, stop = max(first, info.start_offset), min(last + 1, info.end_offset)
            ranges += [Range(log, start, stop)] if start < stop else []
    return lost + job.losses(ranges, values=False)
