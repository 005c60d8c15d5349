"""Merging: small files of an archive become larger ones, of the same log and date.

Rows are copied to a new file, whose place and manifest entry come last; so a merge that is cut has
changed nothing. What was merged stays for as long as older versions of a table may ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyarrow import parquet

from millstream.errors import CorruptionError
from millstream.spark.archive.archive import ArchivedFile, ReplacedFile, Segment
from millstream.spark.archive.folders import Folder
from millstream.spark.archive.task import DateFile
from millstream.spark.source.columns import ROWS_PER_BATCH


class Merge(Struct, frozen=True):
    """Files of one log and date, in order, that become one."""

    log: str
    date: str
    files: list[ArchivedFile]


class PlannedMerges(Struct, frozen=True):
    """Segments without a gap between them, and what is merged of their files."""

    segments: list[Segment]
    merges: list[Merge]

    def joined(self, made: Sequence[ArchivedFile], now_ms: int) -> Segment:
        """The one segment that takes their place, once the files are made."""
        first, last = self.segments[0], self.segments[-1]
        gone = {file.path for merge in self.merges for file in merge.files}
        kept = [file for one in self.segments for file in one.files if file.path not in gone]
        before = [each for one in self.segments for each in one.replaced]
        return replace(
            first,
            stop=last.stop,
            files=sorted([*kept, *made], key=lambda file: file.start),
            written=now_ms,
            lost=[loss for one in self.segments for loss in one.lost],
            replaced=before + [ReplacedFile(path, now_ms) for path in sorted(gone)],
        )


def plan_merges(segments: Sequence[Segment], target_bytes: int) -> Iterator[PlannedMerges]:
    """What of a log's files is to be merged: as many as make up a file of that size."""
    for run in _runs(segments):
        merges = list(_merges(run, target_bytes))
        if merges:
            yield PlannedMerges(run, merges)


def _runs(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Segments that follow each other without a gap."""
    run: list[Segment] = []
    for one in segments:
        if run and run[-1].stop != one.start:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _merges(run: list[Segment], target_bytes: int) -> Iterator[Merge]:
    by_date: dict[str, list[ArchivedFile]] = {}
    for file in sorted(chain(*(one.files for one in run)), key=lambda file: file.start):
        by_date.setdefault(file.date, []).append(file)
    for date, files in by_date.items():
        some: list[ArchivedFile] = []
        for file in files:
            fits = sum(one.bytes for one in some) + file.bytes <= target_bytes
            if some and not (fits and some[-1].stop <= file.start):
                yield from _worth(run[0].log, date, some)
                some = []
            some.append(file)
        yield from _worth(run[0].log, date, some)


def _worth(log: str, date: str, files: list[ArchivedFile]) -> Iterator[Merge]:
    if len(files) > 1:
        yield Merge(log, date, files)


def merge_files(folder: Folder, wanted: Merge, schema: pa.Schema, codec: str) -> ArchivedFile:
    """Copy the rows of some files to a new one, which is staged; it was read back."""
    into = DateFile(folder, wanted.date, schema, codec)
    for one in wanted.files:
        with parquet.ParquetFile(folder.opened(one.path)) as file:
            for batch in file.iter_batches(batch_size=ROWS_PER_BATCH):
                into.add(batch.select(schema.names).cast(schema))
    made = into.close()
    rows = sum(one.rows for one in wanted.files)
    ends = wanted.files[0].start, wanted.files[-1].stop
    if (made.rows, made.start, made.stop) != (rows, *ends):
        raise CorruptionError(
            f"files of log {wanted.log!r} hold {made.rows:,} rows at offsets {made.start} to "
            f"{made.stop - 1}, where {rows:,} at {ends[0]} to {ends[1] - 1} are noted; they were "
            "not merged",
            what="archive",
            where=wanted.log,
        )
    return made
