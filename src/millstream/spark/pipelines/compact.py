"""The pipeline `compact`: writes the last record of each key to a new log or to Parquet.

The metadata of the new log note the source log and its end offset. One transaction appends all
records. So a killed run is run again with the same result.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from millstream.clock import SystemClock
from millstream.errors import AlreadyExists, InvalidInput, NotFound
from millstream.log import commands as c
from millstream.log.model.names import check_name
from millstream.record import Seconds, to_ms, wall_ms_of
from millstream.spark.archive.archive import Archive
from millstream.spark.archive.disk_folder import disk_path
from millstream.spark.failures import point
from millstream.spark.pipelines.target import PipelineRun, Target, Tell, quiet
from millstream.spark.place import writing
from millstream.spark.source.bins import Range
from millstream.spark.source.losses import Loss

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.command import Session

NOTE = "compacted"
"""The metadata entry of a log that was made by compaction."""

TOMBSTONES_S = 86_400.0
"""A day, as Kafka's `delete.retention.ms`: for so long readers learn of a key that is gone."""


class CompactSummary(Struct, frozen=True, kw_only=True):
    """The result of a run."""

    log: str
    to: str
    """The new log, or the directory of Parquet files."""
    read: int
    """Offsets that were looked at."""
    kept: int
    end: int
    """The compaction says how things stood at this offset of the log."""
    seconds: float
    lost: list[Loss] = []
    """What could not be read, and was left out."""


def compact(
    spark: SparkSession,
    store: Target,
    log: str,
    *,
    to: str = "",
    parquet: str | os.PathLike[str] = "",
    archive: str | os.PathLike[str] = "",
    keyless: bool = True,
    empty_deletes: bool = False,
    tombstones: Seconds = TOMBSTONES_S,
    allow_gaps: bool = False,
    progress: Tell = quiet,
) -> CompactSummary:
    """Keep the last record of each key, in the order of their offsets.

    Records without a key are all kept, or none if `keyless` is off. A last record whose value is
    null, a tombstone, deletes its key: it is kept itself for as long as `tombstones` says since its
    append, so that readers of the new log learn of it. With `empty_deletes` a last record with an
    empty value deletes its key at once. `archive` names the directory with the log's
    beginning. The new log must not exist, or be empty. Damaged records end the run; with
    `allow_gaps` they are left out, and the summary names them.
    """
    job = PipelineRun(spark, store, progress)
    check_name(log)
    if bool(to) == bool(parquet):
        raise InvalidInput("expected either a new log or a directory for Parquet, to compact to")
    if to == log:
        raise InvalidInput(f"log {log!r} cannot be compacted onto itself; name a new one")
    with writing(job.place) as session:
        info = session.execute(c.DescribeLog(log))
        if info is None:
            raise NotFound(f"there is no log {log!r} to compact", name=log)
        end, now_ms = info.end_offset, SystemClock().wall_ms()
        if to:
            end, now_ms = _note(session, check_name(to), log, wall_ms_of(info.created), end)
    options: dict[str, Any] = {"archive": os.fspath(archive)} if archive else {}
    options |= {} if not allow_gaps else {"failOnDataLoss": False}
    rows = job.read([log], endingOffsets={log: end}, typedHeaders=True, **options)
    chosen = last_by_key(
        rows,
        keyless=keyless,
        empty_deletes=empty_deletes,
        tombstones_from=now_ms - to_ms(tombstones, "tombstones"),
    )
    progress("compact", 0, end)
    if to:
        record_count = _to_log(job, chosen, to, f"compact:{log}:{wall_ms_of(info.created)}:{to}")
    else:
        path = disk_path(parquet)
        if path.exists():
            raise AlreadyExists(
                f"{path} exists already; choose a new directory, or remove it", name=str(path)
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        record_count = job.write_parquet(chosen, path).count()
    progress("compact", end, end)
    first = 0 if archive else info.start_offset
    live = Range(log, info.start_offset, max(info.start_offset, end))
    lost = [] if not allow_gaps else _losses(job, live, archive)
    return CompactSummary(
        log=log,
        to=to or str(disk_path(parquet)),
        read=max(0, end - first),
        kept=record_count,
        end=end,
        seconds=job.seconds,
        lost=lost,
    )


def _losses(job: PipelineRun, live: Range, archive: str | os.PathLike[str]) -> list[Loss]:
    """What cannot be read of a log, and of the archive of its beginning if there is one."""
    if not archive:
        return job.losses([live], values=True)
    stored = Archive(archive)
    lost = stored.losses({live.log: live.stop})
    seam = max((segment.stop for segment in stored.segments(live.log)), default=live.start)
    if seam < live.start:
        reason = f"log {live.log!r}: offsets {seam} to {live.start - 1} were never archived"
        lost.append(Loss(live.log, seam, live.start, reason))
    behind = Range(live.log, max(live.start, seam), live.stop)  # the rest is read from the archive
    return lost + (job.losses([behind], values=True) if behind.start < behind.stop else [])


def last_by_key(
    rows: DataFrame, *, keyless: bool, empty_deletes: bool, tombstones_from: int
) -> DataFrame:
    """The last row of each key, and rows without a key; in the order of their offsets.

    Tombstones are left out that were appended before `tombstones_from`, in ms since the epoch.
    """
    from pyspark.sql import functions as f

    columns = ["key", "value", "timestamp", "headers", "offset"]
    keyed = rows.where("key is not null").groupBy("key")
    looked_at = f.struct(*columns[1:], "appendTimestamp")
    last = keyed.agg(f.max_by(looked_at, "offset").alias("last")).select("key", "last.*")
    condition = f"value is not null or appendTimestamp >= timestamp_millis({tombstones_from})"
    chosen = last.where(condition).select(*columns)
    if empty_deletes:
        chosen = chosen.where("value is null or length(value) > 0")
    if keyless:
        chosen = chosen.unionByName(rows.where("key is null").select(*columns))
    return chosen.orderBy("offset")


def _note(session: Session, name: str, log: str, created: int, end: int) -> tuple[int, int]:
    """Say in the new log what it is of, and as of when; if a run before has said so, that counts."""
    noted = session.execute(c.GetMetadata(name)).get(NOTE)
    if noted is not None and (noted["log"], noted["created"]) == (log, created):
        return int(noted["end"]), int(noted["at"])
    info = session.execute(c.DescribeLog(name))
    if noted is not None or (info is not None and info.end_offset):
        raise AlreadyExists(
            f"log {name!r} exists already and is not a compaction of {log!r}; choose a new name",
            name=name,
        )
    now_ms = SystemClock().wall_ms()
    note = {"log": log, "created": created, "end": end, "at": now_ms}
    session.execute(c.SetMetadata(name, NOTE, note, expect=None, compare=True))
    return end, now_ms


def _to_log(job: PipelineRun, rows: DataFrame, name: str, app: str) -> int:
    point("compact noted")
    job.append(rows.drop("offset"), log=name, txnAppId=app, txnVersion=0)
    point("compact appended")
    with writing(job.place) as session:
        info = session.execute(c.DescribeLog(name))
    return 0 if info is None else info.end_offset
