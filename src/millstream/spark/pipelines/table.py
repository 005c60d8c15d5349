"""The pipeline `table`: a streaming query that keeps a Delta or Iceberg table up to date with logs.

Every interval the query commits what is new, exactly once: the commit notes the end and the id of each
log in the table itself. The query begins where the newest commit ends and keeps no checkpoint between
runs, so checkpoint and table cannot disagree.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.record import Seconds, to_ms
from millstream.spark.archive.folders import folder_of
from millstream.spark.archive.lake import check_table
from millstream.spark.pipelines.table_run import TableRun
from millstream.spark.pipelines.target import (
    PipelineRun,
    Target,
    Tell,
    check_names,
    options_of,
    quiet,
    subscription,
)
from millstream.spark.place import reading
from millstream.spark.source.losses import Loss
from millstream.worker.stop_signals import stopped_by_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


INTERVAL_S = 10.0
EXPIRE_S = 24 * 3600.0
BATCH_RECORDS = 1_000_000
TARGET_BYTES = 128 * 1024 * 1024
LOCK = "_millstream.lock"


class TableSummary(Struct, frozen=True, kw_only=True):
    """The result of a run."""

    path: str
    kind: str
    version: int
    """The version of the table: Delta's number, Iceberg's snapshot, or -1 without a version."""
    records: int
    """Offsets that this run added to the table."""
    commits: int
    files: int
    """The files of the table now."""
    compacted: int
    """Small files that became part of larger files."""
    expired: int
    """Removed files of forgotten versions."""
    keyless: int
    """Records without a key, which an upsert leaves out."""
    lost: list[Loss]
    """Truncated and damaged records, which the run left out."""
    behind: int
    """Records of the logs that the table lacks."""
    seconds: float


def table(
    spark: SparkSession,
    store: Target,
    path: str | os.PathLike[str],
    *,
    logs: Sequence[str],
    kind: str = "delta",
    once: bool = False,
    interval: Seconds = INTERVAL_S,
    partition_by: str = "",
    upsert: bool = False,
    batch_records: int = BATCH_RECORDS,
    target_file_size: int = TARGET_BYTES,
    expire: Seconds = EXPIRE_S,
    cursor: str = "",
    allow_gaps: bool = False,
    stop: threading.Event | None = None,
    progress: Tell = quiet,
) -> TableSummary:
    """Keep a table in a folder up to date with logs, with a commit every `interval` seconds.

    Runs until `stop` is set; without `stop`, until SIGTERM or Ctrl-C. With `once` the run ends when the
    table has what the logs held at its start. The table has a column for each field of logs with a
    schema, and follows the schema's changes. With `upsert` it holds the latest record of each key of
    a log, and a tombstone deletes its key; records without a key are left out. Small files are compacted
    up to `target_file_size` bytes (0: never), and versions older than `expire` are forgotten. A durable
    cursor of the name `cursor` follows the table, so that *consumed* retention waits for it. Truncated
    or damaged records end the run; with `allow_gaps` they are left out.
    """
    if "connect" in type(spark).__module__:
        raise InvalidInput(
            "a continuous table needs a Spark session with its own Java, not one of Spark Connect: "
            "run it where the driver runs"
        )
    job, folder = PipelineRun(spark, store, progress), folder_of(path)
    names = check_names(logs)
    _check_wishes(names, kind, batch_records, target_file_size, to_ms(interval))
    stopped = threading.Event() if stop is None else stop
    with folder.hold(LOCK), reading(job.place) as session:
        folder.clear()
        run = TableRun(
            job, session, folder, kind, names, by=partition_by, upserts=upsert,
            target_bytes=target_file_size, expire_ms=to_ms(expire),
        )  # fmt: skip
        try:
            query = _started(
                run, job, names, once=once, interval_s=to_ms(interval) / 1000,
                maxOffsetsPerTrigger=batch_records, failOnDataLoss=not allow_gaps, cursor=cursor,
            )  # fmt: skip
            with stopped_by_signals(stopped.set) if stop is None else nullcontext():
                run.follow(query, stopped)
            if run.commits:
                run.upkeep()
        finally:
            shutil.rmtree(run.checkpoint, ignore_errors=True)
            folder.clear()
        return TableSummary(
            path=folder.text,
            kind=kind,
            version=run.sink.version(),
            records=run.records,
            commits=run.commits,
            files=len(run.sink.files()),
            compacted=run.compacted,
            expired=run.expired,
            keyless=run.keyless,
            lost=run.lost,
            behind=run.behind(),
            seconds=job.seconds,
        )


def _started(
    run: TableRun,
    job: PipelineRun,
    logs: Sequence[str],
    *,
    once: bool,
    interval_s: float,
    **options: object,
) -> StreamingQuery:
    """Start the query where the newest commit of the table ends."""
    starts = msgspec.json.encode(run.starts()).decode()
    texts = {**options_of(job.place), **subscription(logs), "startingOffsets": starts}
    texts |= {"rawValues": "true", "typedHeaders": "true"}
    texts |= {name: str(value).lower() for name, value in options.items() if name != "cursor"}
    texts |= {"cursor": str(options["cursor"])} if options["cursor"] else {}
    rows = job.spark.readStream.format("millstream").options(**texts).load()
    writer = rows.writeStream.foreachBatch(run.begin).queryName(f"millstream table {run.path}")
    writer = writer.option("checkpointLocation", run.checkpoint.as_uri())
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval_s} seconds").start()


def _check_wishes(
    logs: Sequence[str], kind: str, batch_records: int, target_bytes: int, interval_ms: int
) -> None:
    check_table(kind)
    if not logs:
        raise InvalidInput("expected the name of at least one log for the table")
    if batch_records < 1:
        raise InvalidInput(f"a commit has at least 1 record, not {batch_records}")
    if target_bytes < 0:
        raise InvalidInput(f"a file has a positive number of bytes, not {target_bytes}")
    if interval_ms < 1:
        raise InvalidInput("expected an interval of at least a millisecond")
