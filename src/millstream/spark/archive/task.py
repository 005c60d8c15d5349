"""What tasks of pipelines do: ranges of logs → Parquet files, by log and date; a search for damage.

The files are written aside, under names of their own, so that a task that is repeated disturbs
nothing. Each is durable, and was read back, before the task answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from pyarrow import parquet

from millstream.spark.archive.archive import ArchivedFile
from millstream.spark.archive.folders import Folder
from millstream.spark.options import ReadOptions
from millstream.spark.place import reading
from millstream.spark.source.bins import Range
from millstream.spark.source.columns import batch_of
from millstream.spark.source.losses import Loss
from millstream.spark.source.task import blocks_of

ROWS_PER_GROUP = 128 * 1024
BYTES_PER_GROUP = 64 * 1024 * 1024
OPEN_MAX = 8
"""Files of one log that are open at a time: times of appends may go back, but not far."""

_DAY_US = 86_400_000_000


class WrittenRange(Struct, frozen=True, array_like=True):
    """What became of a range."""

    log: str
    files: list[ArchivedFile]
    """The paths of the files are their names in the staging folder."""
    lost: list[Loss]
    """What could not be read, if the options leave it out."""


def write_ranges(
    options: ReadOptions, ranges: Sequence[Range], schema: pa.Schema, *, folder: Folder, codec: str
) -> Iterator[WrittenRange]:
    """Write ranges to files that are staged in a folder; the store is open until the last is."""
    trusted = not options.place.is_server
    with reading(options.place) as session:
        for range_ in ranges:
            files, lost = _DateFiles(folder, schema, codec), list[Loss]()
            for block in blocks_of(session, options, range_, values=True, tell=lost.append):
                files.add(batch_of(block, schema, trusted=trusted))
            yield WrittenRange(range_.log, files.close(), lost)


def find_losses(options: ReadOptions, ranges: Sequence[Range], *, values: bool) -> list[Loss]:
    """Read every block of the ranges; return the offsets that cannot be read."""
    lost: list[Loss] = []
    with reading(options.place) as session:
        for range_ in ranges:
            for _ in blocks_of(session, options, range_, values=values, tell=lost.append):
                pass
    return lost


class _DateFiles:
    """The files of a range, one per date."""

    def __init__(self, folder: Folder, schema: pa.Schema, codec: str) -> None:
        self._folder = folder
        self._schema = schema
        self._codec = codec
        self._open: dict[int, DateFile] = {}
        self._done: list[ArchivedFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows to the files of their dates."""
        times = batch.column("appendTimestamp").cast(pa.int64()).to_numpy()
        days = times // _DAY_US
        first, last = int(days.min()), int(days.max())
        if first == last:
            self._of(first).add(batch)
            return
        for day in np.unique(days).tolist():
            self._of(day).add(batch.filter(pa.array(days == day)))

    def close(self) -> list[ArchivedFile]:
        """Finish the files durably; return a description of each file in order."""
        self._done += [file.close() for file in self._open.values()]
        self._open = {}
        return sorted(self._done, key=lambda file: file.start)

    def _of(self, day: int) -> DateFile:
        date_file = self._open.get(day)
        if date_file is None:
            if len(self._open) >= OPEN_MAX:
                oldest = next(iter(self._open))
                self._done.append(self._open.pop(oldest).close())
            date = str(np.datetime64(day, "D"))
            date_file = self._open[day] = DateFile(self._folder, date, self._schema, self._codec)
        return date_file


class DateFile:
    """A file that is being written."""

    def __init__(self, folder: Folder, date: str, schema: pa.Schema, codec: str) -> None:
        self._folder = folder
        self._path = folder.draft()
        self._date = date
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
        archived_file = described(self._path, self._date)
        return replace(archived_file, path=self._folder.stage(self._path))

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._rows, self._bytes = [], 0, 0


def described(path: Path, date: str) -> ArchivedFile:
    """Describe a file by its own content."""
    with parquet.ParquetFile(path) as file:
        offsets: Any = file.read(columns=["offset"]).column("offset")
    ends: Any = pc.min_max(offsets)
    return ArchivedFile(
        path=str(path),
        date=date,
        start=ends["min"].as_py(),
        stop=ends["max"].as_py() + 1,
        rows=pc.count_distinct(offsets).as_py(),
        bytes=path.stat().st_size,
    )
