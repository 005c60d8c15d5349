"""A run of the pipeline `table`: the table, and the batches that its query brings.

Each batch becomes a commit that notes the end and the id of each log in the table itself. Files of a
killed run that no commit names are no part of the table, and expire.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyarrow import parquet

from millstream.clock import SystemClock
from millstream.errors import Conflict, MillstreamError, NotFound
from millstream.record import LogInfo
from millstream.spark.archive.archive import ArchivedFile
from millstream.spark.archive.folders import Folder, folder_of
from millstream.spark.archive.partitioning import PartitionBy
from millstream.spark.archive.partitioning import partition_by as partitions_of
from millstream.spark.archive.task import PartitionFiles
from millstream.spark.archive.typed_columns import TypedColumns, typed_columns, union
from millstream.spark.failures import point
from millstream.spark.options import EARLIEST, read_options
from millstream.spark.pipelines.target import (
    PipelineRun,
    options_of,
    subscription,
)
from millstream.spark.source.losses import Loss
from millstream.spark.source.planning import find_logs, made_anew, with_wholes
from millstream.spark.source.positions import LogIds, Position, ids_in, unpacked
from millstream.spark.source.typed_rows import newest_schema
from millstream.spark.tables.rewriting import (
    SmallFiles,
    compact_files,
    inserted,
    latest_rows,
    plan_compactions,
    without_keys,
)
from millstream.spark.tables.rows import base_columns, decoded, encoded, missing_rows, write_rows
from millstream.spark.tables.sink import (
    Covered,
    FileChange,
    TableFile,
    TableSink,
    new_name,
    open_sink,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from millstream.command import Session

UPKEEP_COMMITS = 20
"""Small files are compacted and old versions expire after so many commits, and when the run ends."""

LOOK_S = 0.2
"""How often a run looks whether its query has ended."""

CODEC = "zstd"


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
        self._firsts: Position = {}
        """Where each log began when the run began."""
        self.lost: list[Loss] = []
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
        self._firsts = {name: info.start_offset for name, info in infos.items()}
        covered = self.sink.covered(list(infos))
        self._check_same(covered, {name: info.id for name, info in infos.items()})
        return {name: covered.ends.get(name, EARLIEST) for name in infos}

    def _ids_now(self) -> LogIds:
        """Return the ids of all logs that exist."""
        return {name: info.id for name, info in self.infos().items()}

    def _check_same(self, covered: Covered, ids: LogIds) -> None:
        """Refuse a log that was deleted and made anew: the covered records are of the old log."""
        for name, old_id in covered.ids.items():
            new_id = ids.get(name)
            if new_id and new_id != old_id:
                raise made_anew(
                    name,
                    new_id,
                    old_id=old_id,
                    offset=covered.ends[name],
                    origin=f"table {self._folder.text}",
                    advice="Write the new log to another table",
                )

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
            if before.ids != ids:
                self._check_same(before, ids)
            began = unpacked(_planned(self.checkpoint, number - 1)) if number else {}
            if any(before.ends.get(log) != at for log, at in began.items()):
                raise Conflict(
                    f"another run has changed the table {self._folder.text}; run it again"
                )
            # Asked after the batch was planned, the schemas describe every record of the batch.
            columns = self._columns_now()
            if not set(columns) <= set(self._columns):
                self._columns = self.sink.prepare(columns)
            try:
                staged = self._staged(rows)
            finally:  # tasks read logs by name; one that was made anew may also make a task fail
                self._check_same(Covered(ends, ids), self._ids_now())
            point("table staged")
            starts = {log: before.ends.get(log, self._firsts.get(log, 0)) for log in ends}
            lost = self._lost(staged, starts, ends)
            change = self._upsert(staged) if self._upserts else FileChange(
                added=self._placed(staged), covered=Covered()
            )  # fmt: skip
            point("table moved")
            self.sink.commit(replace(change, covered=Covered(ends, ids)))
            point("table noted")
            self.commits += 1
            self.records += sum(file.rows for file in staged)
            self.lost += lost
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

    def _lost(self, staged: Sequence[ArchivedFile], starts: Position, ends: Position) -> list[Loss]:
        """Return the offsets of a batch whose records were left out."""
        planned = sum(end - starts[log] for log, end in ends.items())
        if planned <= sum(file.rows for file in staged):
            return []
        columns = ["topic", "partition", "offset"]
        tables = [
            parquet.read_table(self._folder.opened(file.path), columns=columns, partitioning=None)
            for file in staged
        ]
        return missing_rows(tables, starts, ends)

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


def _planned(checkpoint: Path, number: int) -> dict[str, Any]:
    """Return the position at which a batch ends, as Spark noted it before the batch began."""
    lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    position: dict[str, Any] = msgspec.json.decode(lines[-1])
    return position
