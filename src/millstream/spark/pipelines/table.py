"""The pipeline `table`: a streaming query that keeps a Delta or Iceberg table up to date with logs.

Every interval the query commits what is new, exactly once: the commit notes the end and the id of each
log in the table itself. The query begins where the newest commit ends and keeps no checkpoint between
runs, so checkpoint and table cannot disagree. Files of a killed run that no commit names are no part of
the table, and expire.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyarrow import parquet

from millstream.clock import SystemClock
from millstream.errors import Conflict, InvalidInput, MillstreamError, NotFound
from millstream.record import LogInfo, Seconds, to_ms
from millstream.spark.archive.archive import ArchivedFile
from millstream.spark.archive.folders import Folder, folder_of
from millstream.spark.archive.lake import check_table
from millstream.spark.archive.partitioning import PartitionBy
from millstream.spark.archive.partitioning import partition_by as partitions_of
from millstream.spark.archive.task import PartitionFiles
from millstream.spark.archive.typed_columns import TypedColumns, typed_columns, union
from millstream.spark.failures import point
from millstream.spark.options import EARLIEST, read_options
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
from millstream.spark.source.planning import find_logs, made_anew, with_wholes
from millstream.spark.source.positions import Position, ids_in, unpacked
from millstream.spark.source.typed_rows import newest_schema
from millstream.spark.tables.rewriting import (
    SmallFiles,
    compact_files,
    inserted,
    latest_rows,
    plan_compactions,
    without_keys,
)
from millstream.spark.tables.rows import base_columns, decoded, encoded, write_rows
from millstream.spark.tables.sink import (
    Covered,
    FileChange,
    TableFile,
    TableSink,
    new_name,
    open_sink,
)
from millstream.worker.stop_signals import stopped_by_signals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from millstream.command import Session

INTERVAL_S = 10.0
EXPIRE_S = 24 * 3600.0
BATCH_RECORDS = 1_000_000
TARGET_BYTES = 128 * 1024 * 1024
UPKEEP_COMMITS = 20
"""Small files are compacted and old versions expire after so many commits, and when the run ends."""

LOOK_S = 0.2
"""How often a run looks whether its query has ended."""

LOCK = "_millstream.lock"
CODEC = "zstd"


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
    behind: int
    """Records of the logs that the table lacks."""
    seconds: float


class TableRun:
    """A run: the table, and the batches that the query brings."""

    def __init__(
        self,
        job: PipelineRun,
        session: Session,
        folder: Folder,
        kind: str,
        logs: Sequence[str],
        *,
        by: str,
        upserts: bool,
        target_bytes: int,
        expire_ms: int,
    ) -> None:
        self._job, self._session, self._folder = job, session, folder
        self.path, self._is_iceberg = folder.text, kind == "iceberg"
        self._failure: MillstreamError | None = None
        self._logs, self._upserts = logs, upserts
        self._target_bytes, self._expire_ms = target_bytes, expire_ms
        self._typed: dict[str, TypedColumns] = {}
        names = with_wholes(self.infos())
        if missing := [log for log in logs if log not in names]:
            raise NotFound(f"there is no log {missing[0]!r} for the table", name=missing[0])
        columns = self._columns_now()
        self._by: PartitionBy = partitions_of(by, columns)
        self.sink: TableSink = open_sink(folder, kind, columns, self._by, expire_ms)
        self._columns = self.sink.prepare(columns)
        self.checkpoint = Path(tempfile.mkdtemp(prefix="millstream-table-"))
        self.lock = threading.Lock()
        """Held while a batch is committed."""
        self.ended = False
        self.records = self.commits = self.compacted = self.expired = self.keyless = 0

    def infos(self) -> dict[str, LogInfo]:
        """Describe the logs; of partitioned logs their partitions."""
        options = {**options_of(self._job.place), **subscription(self._logs)}
        return find_logs(self._session, read_options(options))

    def starts(self) -> Position:
        """Return where the query begins in each log."""
        infos = self.infos()
        covered = self.sink.covered(list(infos))
        for name, number in covered.ids.items():
            if infos[name].id and infos[name].id != number:
                raise made_anew(
                    infos[name], number, covered.ends[name], f"table {self._folder.text}"
                )
        return {name: covered.ends.get(name, EARLIEST) for name in infos}

    def _columns_now(self) -> pa.Schema:
        """Return the columns of the logs' newest schemas; note how values become columns."""
        schemas = {log: newest_schema(self._session, log) for log in self._logs}
        for log, schema in schemas.items():
            before = self._typed.get(log)
            if schema is not None and (before is None or before.schema != schema):
                self._typed[log] = typed_columns(schema)
        return union([base_columns(), *(each.fields() for each in self._typed.values())])

    def begin(self, rows: DataFrame, number: int) -> None:
        """Commit a batch of the query; keep the error for the caller, because Spark wraps it."""
        try:
            self._take(rows, number)
        except MillstreamError as error:
            self._failure = error
            raise

    def follow(self, query: StreamingQuery, stopped: threading.Event) -> None:
        """Wait for the end of the query, or stop it between two commits."""
        while query.isActive and not stopped.wait(LOOK_S):
            pass
        with self.lock:
            self.ended = True
        query.stop()
        if self._failure is not None:
            raise self._failure
        if (error := query.exception()) is not None:
            raise error

    def _take(self, rows: DataFrame, number: int) -> None:
        """Commit a batch of the query, unless the table has it already."""
        with self.lock:
            if self.ended:
                return
            planned = _planned(self.checkpoint, number)
            ends, ids = unpacked(planned), ids_in(planned)
            before = self.sink.covered(list(ends))
            if before.ends == ends:
                return
            began = unpacked(_planned(self.checkpoint, number - 1)) if number else {}
            if any(before.ends.get(log) != at for log, at in began.items()):
                raise Conflict(
                    f"another run has changed the table {self._folder.text}; run it again"
                )
            # Asked after the batch was planned, the schemas describe every record of the batch.
            columns = self._columns_now()
            if not set(columns) <= set(self._columns):
                self._columns = self.sink.prepare(columns)
            staged = self._staged(rows)
            point("table staged")
            change = self._upsert(staged) if self._upserts else FileChange(
                added=self._placed(staged), covered=Covered()
            )  # fmt: skip
            point("table moved")
            self.sink.commit(replace(change, covered=Covered(ends, ids)))
            point("table noted")
            self.commits += 1
            self.records += sum(file.rows for file in staged)
            if self.commits % UPKEEP_COMMITS == 0:
                self.upkeep()
            latest = {name: info.end_offset for name, info in self.infos().items()}
            self._job.progress("table", sum(ends.values()), sum(latest.values()))

    def _staged(self, rows: DataFrame) -> list[ArchivedFile]:
        """Let tasks write the rows of a batch to staged files."""
        place, by, upserts = self._folder.text, self._by, self._upserts
        typed, columns = dict(self._typed), self._columns

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield encoded(
                write_rows(
                    batches,
                    typed,
                    columns,
                    folder=folder_of(place),
                    by=by,
                    codec=CODEC,
                    upserts=upserts,
                )
            )

        answers = rows.mapInArrow(write, "files binary").collect()
        return [file for row in answers for file in decoded(bytes(row[0]))]

    def _placed(self, files: Sequence[ArchivedFile]) -> list[ArchivedFile]:
        """Move staged files to their partitions."""
        below = "data/" if self._is_iceberg else ""
        targets = [f"{below}{self._by.directory(file.partition)}/{new_name()}" for file in files]
        self._folder.check_held()
        self._folder.move({file.path: to for file, to in zip(files, targets, strict=True)})
        return [replace(file, path=to) for file, to in zip(files, targets, strict=True)]

    def _upsert(self, staged: Sequence[ArchivedFile]) -> FileChange:
        """Return the change that replaces rows of the table by newer rows of their keys."""
        folder, place, by, columns = self._folder, self._folder.text, self._by, self._columns
        if not staged:
            return FileChange(covered=Covered())
        tables = [
            parquet.read_table(folder.opened(file.path), partitioning=None) for file in staged
        ]
        latest, keyless = latest_rows(pa.concat_tables(tables))
        self.keyless += keyless
        draft = folder.draft()
        parquet.write_table(latest.select(["topic", "key"]), draft)
        keys = folder.stage(draft)

        def rewrite(file: TableFile) -> bytes:
            table_folder = folder_of(place)
            named = parquet.read_table(table_folder.opened(keys), partitioning=None)
            return msgspec.json.encode(
                without_keys(table_folder, file, named, columns, by=by, codec=CODEC)
            )

        files = self.sink.files()
        answers = self._job.in_tasks(rewrite, files) if files else []
        added: list[ArchivedFile] = []
        removed: list[TableFile] = []
        for file, answer in zip(files, answers, strict=True):
            made = msgspec.json.decode(answer, type=list[ArchivedFile] | None)
            if made is not None:
                removed.append(file)
                added += made
        fresh = PartitionFiles(folder, columns, by, CODEC, has_unique_offsets=False)
        for batch in inserted(latest, columns):
            fresh.add(batch)
        added += fresh.close()
        folder.remove([keys, *(file.path for file in staged)])
        return FileChange(added=self._placed(added), removed=removed, covered=Covered())

    def upkeep(self) -> None:
        """Compact small files, and remove files that no version needs any more."""
        place, by, columns = self._folder.text, self._by, self._columns
        compactions = plan_compactions(self.sink.files(), self._target_bytes)

        def compact(compaction: SmallFiles) -> bytes:
            made = compact_files(folder_of(place), compaction, columns, by, CODEC)
            return msgspec.json.encode(made)

        if compactions:
            answers = self._job.in_tasks(compact, compactions)
            made = [msgspec.json.decode(answer, type=ArchivedFile) for answer in answers]
            removed = [file for compaction in compactions for file in compaction.files]
            covered = self.sink.covered(list(self.infos()))
            added = self._placed(made)
            point("table compacted")
            self.sink.commit(
                FileChange(added=added, removed=removed, covered=covered, keeps_rows=True)
            )
            self.compacted += len(removed)
        self.expired += self.sink.expire(SystemClock().wall_ms() - self._expire_ms)

    def behind(self) -> int:
        """Return how many records of the logs the table lacks."""
        infos = self.infos()
        ends = self.sink.covered(list(infos)).ends
        return sum(
            info.end_offset - max(ends.get(name, 0), info.start_offset)
            for name, info in infos.items()
        )


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


def _planned(checkpoint: Path, number: int) -> dict[str, Any]:
    """Return the position at which a batch ends, as Spark noted it before the batch began."""
    lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    position: dict[str, Any] = msgspec.json.decode(lines[-1])
    return position


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
