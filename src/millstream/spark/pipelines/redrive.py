"""The pipeline `redrive`: failed messages chosen by SQL → available again.

A message that was redriven is no longer failed, so a run that was killed is run again with the same
condition and finds only those that are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.log.model.names import check_name
from millstream.queue.commands import REDRIVE_PER_COMMIT, RedriveClaims
from millstream.spark.failures import point
from millstream.spark.pipelines.target import (
    PipelineRun,
    Target,
    Tell,
    find_queues,
    quiet,
    understood,
)
from millstream.spark.place import writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RedriveSummary(Struct, frozen=True, kw_only=True):
    """The result of a run."""

    queue: str
    failed: int
    """Messages that were failed when the run began."""
    chosen: int
    redriven: int
    """Fewer than chosen, if others were redriven or purged meanwhile."""
    dry_run: bool
    seconds: float


def redrive(
    spark: SparkSession,
    store: Target,
    queue: str,
    *,
    where: str = "true",
    limit: int | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    progress: Tell = quiet,
) -> RedriveSummary:
    """Make those failed messages of a queue available again for which a SQL condition is true.

    Its columns are those of the source with `queue`, `state=failed` and `typedHeaders`, and `text`,
    the value as text. The oldest come first. With a `rate` they become due so many per second.
    """
    job = PipelineRun(spark, store, progress)
    check_name(queue, "queue")
    if limit is not None and limit < 1:
        raise InvalidInput(f"a limit is at least 1, not {limit}")
    if rate is not None and not rate > 0:
        raise InvalidInput(f"a rate is a number of messages per second above 0, not {rate!r}")
    with writing(job.place) as session:
        (info,) = find_queues(session, [queue])
        rows = job.load(queue=queue, state="failed", typedHeaders=True)
        progress("choosing", 0, info.failed)
        claims = _chosen(rows, where, limit)
        total = 0
        if not dry_run:
            for first in range(0, len(claims), REDRIVE_PER_COMMIT):
                batch = claims[first : first + REDRIVE_PER_COMMIT]
                total += session.execute(RedriveClaims(queue, batch, rate, first))
                point("redrive some")
                progress("redrive", first + len(batch), len(claims))
    return RedriveSummary(
        queue=queue,
        failed=info.failed,
        chosen=len(claims),
        redriven=total,
        dry_run=dry_run,
        seconds=job.seconds,
    )


def _chosen(rows: DataFrame, where: str, limit: int | None) -> list[int]:
    """The claims for which the condition is true, in their order."""
    with understood("the condition cannot be asked"):
        matching = (
            rows.withColumn("text", rows["value"].cast("string")).where(where).select("claimId")
        )
    claims = [int(row[0]) for row in matching.collect()]  # one task reads the messages in order
    return claims if limit is None else claims[:limit]
