"""Merging: small files of an archive become larger ones, of the same log and partition.

Rows are copied to a new file, whose place and manifest entry come last; so a merge that is cut has
changed nothing. What was merged stays for as long as older versions of a table may ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace
from pyarrow import parquet

from millstream.errors import CorruptionError
from millstream.spark.archive.archive import ArchivedFile, ReplacedFile, Segment
from millstream.spark.archive.folders import Folder
from millstream.spark.archive.task import PartitionFile
from millstream.spark.archive.typed_columns import as_schema, union
from millstream.spark.source.columns import ROWS_PER_BATCH


class Merge(Struct, frozen=True):
    """Consecutive files of a log and partition that become a single file."""

    log: str
    partition: str
    files: list[ArchivedFile]


class PlannedMerges(Struct, frozen=True):
    """Segments without a gap between them, and the merges of their files."""

    segments: list[Segment]
    merges: list[Merge]

    def joined(self, made: Sequence[ArchivedFile], now_ms: int) -> Segment:
        """Return the segment that replaces all segments once the merged files exist."""
        first, last = self.segments[0], self.segments[-1]
        gone = {file.path for merge in self.merges for file in merge.files}
        unmerged = [
            file for segment in self.segments for file in segment.files if file.path not in gone
        ]
        before = [each for segment in self.segments for each in segment.replaced]
        return replace(
            first,
            stop=last.stop,
            files=sorted([*unmerged, *made], key=lambda file: file.start),
            written=now_ms,
            lost=[loss for segment in self.segments for loss in segment.lost],
            replaced=before + [ReplacedFile(path, now_ms) for path in sorted(gone)],
        )


def plan_merges(segments: Sequence[Segment], target_bytes: int) -> Iterator[PlannedMerges]:
    """Yield the merges of a log: groups of small files that fill a file of the target size."""
    for run in _runs(segments):
        merges = list(_merges(run, target_bytes))
        if merges:
            yield PlannedMerges(run, merges)


def _runs(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yield lists of segments without a gap between neighbours."""
    run: list[Segment] = []
    for segment in segments:
        if run and run[-1].stop != segment.start:
            yield run
            run = []
        run.append(segment)
    if run:
        yield run


def _merges(run: list[Segment], target_bytes: int) -> Iterator[Merge]:
    by_partition: dict[str, list[ArchivedFile]] = {}
    for file in sorted(chain(*(segment.files for segment in run)), key=lambda file: file.start):
        by_partition.setdefault(file.partition, []).append(file)
    for partition, files in by_partition.items():
        group: list[ArchivedFile] = []
        for file in files:
            fits = sum(member.bytes for member in group) + file.bytes <= target_bytes
            if group and not (fits and group[-1].stop <= file.start):
                yield from _worth(run[0].log, partition, group)
                group = []
            group.append(file)
        yield from _worth(run[0].log, partition, group)


def _worth(log: str, partition: str, files: list[ArchivedFile]) -> Iterator[Merge]:
    if len(files) > 1:
        yield Merge(log, partition, files)


def merge_files(folder: Folder, merge: Merge, codec: str) -> ArchivedFile:
    """Copy the rows of files to a new staged file, and check it by reading it back.

    Columns that some of the files lack are null for their rows.
    """
    paths = [folder.opened(source.path) for source in merge.files]
    schema = union([parquet.read_schema(path) for path in paths])
    into = PartitionFile(folder, merge.partition, schema, codec)
    for source in merge.files:
        with parquet.ParquetFile(folder.opened(source.path)) as file:
            for batch in file.iter_batches(batch_size=ROWS_PER_BATCH):
                into.add(as_schema(batch, schema))
    made = into.close()
    rows = sum(source.rows for source in merge.files)
    ends = merge.files[0].start, merge.files[-1].stop
    if (made.rows, made.start, made.stop) != (rows, *ends):
        raise CorruptionError(
            f"files of log {merge.log!r} hold {made.rows:,} rows at offsets {made.start} to "
            f"{made.stop - 1}, where {rows:,} at {ends[0]} to {ends[1] - 1} are noted; they were "
            "not merged",
            what="archive",
            where=merge.log,
        )
    return made
