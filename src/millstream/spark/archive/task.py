"""What tasks of pipelines do: ranges of logs → Parquet files by partition; a search for damage.

The files are written aside, under names of their own, so that a task that is repeated disturbs
nothing. Each is durable, and was read back, before the task answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from pyarrow import parquet

from millstream.spark.archive.archive import ArchivedFile
from millstream.spark.archive.folders import Folder
from millstream.spark.archive.partitioning import BY_DATE, PartitionBy
from millstream.spark.archive.typed_columns import TypedColumns
from millstream.spark.options import ReadOptions
from millstream.spark.place import reading
from millstream.spark.source.bins import Range
from millstream.spark.source.columns import batch_of
from millstream.spark.source.losses import Loss
from millstream.spark.source.task import blocks_of

ROWS_PER_GROUP = 128 * 1024
BYTES_PER_GROUP = 64 * 1024 * 1024
OPEN_MAX = 32
"""Files that a task has open at a time; a row of one more partition closes the oldest file."""


class WrittenRange(Struct, frozen=True, array_like=True):
    """What became of a range."""

    log: str
    files: list[ArchivedFile]
    """The paths of the files are their names in the staging folder."""
    lost: list[Loss]
    """What could not be read, if the options leave it out."""


def write_ranges(
    options: ReadOptions,
    ranges: Sequence[Range],
    schema: pa.Schema,
    *,
    folder: Folder,
    codec: str,
    by: PartitionBy = BY_DATE,
    typed: Mapping[str, TypedColumns] | None = None,
) -> Iterator[WrittenRange]:
    """Write ranges to files that are staged in a folder; the store is open until the last is.

    Logs in `typed` get the columns of their values too.
    """
    trusted = not options.place.is_server
    with reading(options.place) as session:
        for range_ in ranges:
            columns = (typed or {}).get(range_.log)
            with_columns = [] if columns is None else columns.fields()
            files = PartitionFiles(folder, pa.schema([*schema, *with_columns]), by, codec)
            lost: list[Loss] = []
            for block in blocks_of(session, options, range_, values=True, tell=lost.append):
                rows = batch_of(block, schema, trusted=trusted)
                files.add(rows if columns is None else columns.added_to(rows))
            yield WrittenRange(range_.log, files.close(), lost)


def find_losses(options: ReadOptions, ranges: Sequence[Range], *, values: bool) -> list[Loss]:
    """Read every block of the ranges; return the offsets that cannot be read."""
    lost: list[Loss] = []
    with reading(options.place) as session:
        for range_ in ranges:
            for _ in blocks_of(session, options, range_, values=values, tell=lost.append):
                pass
    return lost


class PartitionFiles:
    """The files that a task writes, one per partition."""

    def __init__(
        self,
        folder: Folder,
        schema: pa.Schema,
        by: PartitionBy,
        codec: str,
        *,
        has_unique_offsets: bool = True,
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._by = by
        self._codec = codec
        self._has_unique_offsets = has_unique_offsets
        """Whether equal offsets are a fault, which the archive finds by its count of rows."""
        self._open: dict[str, PartitionFile] = {}
        self._done: list[ArchivedFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows to the files of their partitions."""
        for value, rows in self._by.split(batch):
            self._of(value).add(rows)

    def close(self) -> list[ArchivedFile]:
        """Finish the files durably; return a description of each file in order."""
        self._done += [file.close() for file in self._open.values()]
        self._open = {}
        return sorted(self._done, key=lambda file: file.start)

    def _of(self, value: str) -> PartitionFile:
        file = self._open.get(value)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                oldest = next(iter(self._open))
                self._done.append(self._open.pop(oldest).close())
            file = PartitionFile(
                self._folder,
                value,
                self._schema,
                self._codec,
                has_unique_offsets=self._has_unique_offsets,
            )
            self._open[value] = file
        return file


class PartitionFile:
    """A file that is being written."""

    def __init__(
        self,
        folder: Folder,
        partition: str,
        schema: pa.Schema,
        codec: str,
        *,
        has_unique_offsets: bool = True,
    ) -> None:
        self._folder = folder
        self._has_unique_offsets = has_unique_offsets
        self._path = folder.draft()
        self._partition = partition
        self._schema = schema
        self._writer = parquet.ParquetWriter(
            self._path, schema, compression=codec, store_schema=False
        )
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows, once there are enough of them for a group."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROWS_PER_GROUP or self._bytes >= BYTES_PER_GROUP:
            self._flush()

    def close(self) -> ArchivedFile:
        """Finish the file durably; return its description, read back from the file."""
        self._flush()
        self._writer.close()
        archived_file = described(
            self._path, self._partition, has_unique_offsets=self._has_unique_offsets
        )
        return replace(archived_file, path=self._folder.stage(self._path))

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._rows, self._bytes = [], 0, 0


def described(path: Path, partition: str, *, has_unique_offsets: bool) -> ArchivedFile:
    """Describe a file by its own content."""
    with parquet.ParquetFile(path) as file:
        offsets: Any = file.read(columns=["offset"]).column("offset")
    ends: Any = pc.min_max(offsets)
    return ArchivedFile(
        path=str(path),
        partition=partition,
        start=ends["min"].as_py(),
        stop=ends["max"].as_py() + 1,
        rows=pc.count_distinct(offsets).as_py() if has_unique_offsets else len(offsets),
        bytes=path.stat().st_size,
    )
