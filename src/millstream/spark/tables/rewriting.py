"""Rewrites of a table's files: small files become larger ones, and upserts replace rows by key.

New files are written aside, and one commit exchanges them for the old files. So readers see either the
old rows or the new ones, and a rewrite that is cut has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyarrow import parquet

from millstream.errors import CorruptionError
from millstream.spark.archive.archive import ArchivedFile
from millstream.spark.archive.partitioning import NULL, PartitionBy
from millstream.spark.archive.task import PartitionFile, PartitionFiles
from millstream.spark.archive.typed_columns import as_schema
from millstream.spark.source.columns import ROWS_PER_BATCH
from millstream.spark.tables.rows import DELETED
from millstream.spark.tables.sink import TableFile

if TYPE_CHECKING:
    from millstream.spark.archive.folders import Folder

FILES_MIN = 4
"""The fewest small files of a partition that are worth a rewrite."""


class SmallFiles(Struct, frozen=True):
    """Small files of a partition that become a single file."""

    partition: str
    files: list[TableFile]


def plan_compactions(files: Sequence[TableFile], target_bytes: int) -> list[SmallFiles]:
    """Return groups of small files of a partition that fill a file of the target size.

    A file of half the size is large enough: to rewrite it again and again would cost more than it
    saves.
    """
    by_partition: dict[str, list[TableFile]] = {}
    for file in files:
        if file.bytes < target_bytes / 2:
            by_partition.setdefault(file.partition, []).append(file)
    compactions = []
    for partition, small in by_partition.items():
        group: list[TableFile] = []
        for file in sorted(small, key=lambda file: file.path):
            if sum(member.bytes for member in group) + file.bytes > target_bytes:
                compactions.append(SmallFiles(partition, group))
                group = []
            group.append(file)
        compactions.append(SmallFiles(partition, group))
    return [each for each in compactions if len(each.files) >= FILES_MIN]


def compact_files(
    folder: Folder, compaction: SmallFiles, columns: pa.Schema, by: PartitionBy, codec: str
) -> ArchivedFile:
    """Copy the rows of small files to a staged file."""
    into = PartitionFile(folder, compaction.partition, columns, codec, has_unique_offsets=False)
    for file in compaction.files:
        for batch in batches_of(folder, file, columns, by):
            into.add(batch)
    made, rows = into.close(), sum(file.rows for file in compaction.files)
    if made.rows != rows:
        raise CorruptionError(
            f"files of the table hold {made.rows:,} rows where {rows:,} are noted; they were not "
            "compacted",
            what="table",
            where=folder.text,
        )
    return made


def batches_of(
    folder: Folder, file: TableFile, columns: pa.Schema, by: PartitionBy
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file; a column that other writers leave to the partition is filled in."""
    with parquet.ParquetFile(folder.opened(file.path)) as opened:
        for batch in opened.iter_batches(batch_size=ROWS_PER_BATCH):
            if not by.by_day and by.column not in batch.schema.names and file.partition != NULL:
                value = pa.array([file.partition]).cast(columns.field(by.column).type)
                batch = batch.append_column(by.column, pa.repeat(value[0], batch.num_rows))
            yield as_schema(batch, columns)


def latest_rows(staged: pa.Table) -> tuple[pa.Table, int]:
    """Return the last row of each key, and how many rows have no key."""
    keyed = staged.filter(staged.column("key").is_valid()).sort_by("offset")
    numbered = keyed.append_column("_row", pa.array(range(keyed.num_rows), pa.int64()))
    last = numbered.group_by(["topic", "key"]).aggregate([("_row", "max")])
    chosen = last.column("_row_max").combine_chunks().sort()
    return keyed.take(chosen), staged.num_rows - keyed.num_rows


def without_keys(
    folder: Folder,
    file: TableFile,
    keys: pa.Table,
    columns: pa.Schema,
    *,
    by: PartitionBy,
    codec: str,
) -> list[ArchivedFile] | None:
    """Write the rows of a file whose keys are not among `keys`; return None if no row has to go."""
    present = parquet.read_table(
        folder.opened(file.path), columns=["topic", "key"], partitioning=None
    )
    if not pc.any(_among(present, keys)).as_py():
        return None
    files = PartitionFiles(folder, columns, by, codec, has_unique_offsets=False)
    for batch in batches_of(folder, file, columns, by):
        stay = batch.filter(
            pc.invert(_among(pa.Table.from_batches([batch]), keys).combine_chunks())
        )
        if stay.num_rows:
            files.add(stay)
    return files.close()


def _among(rows: pa.Table, keys: pa.Table) -> pa.ChunkedArray:
    """Return for each row whether its topic and key are among the keys."""
    matches = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for topic in keys.column("topic").unique():
        of_topic = keys.filter(pc.equal(keys.column("topic"), topic)).column("key")
        is_match = pc.is_in(
            rows.column("key"), value_set=of_topic.combine_chunks(), skip_nulls=True
        )
        matches = pc.or_(matches, pc.and_(pc.equal(rows.column("topic"), topic), is_match))
    return pc.fill_null(matches, False)


def inserted(rows: pa.Table, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows that an upsert adds: all but tombstones."""
    rows = rows.filter(pc.invert(rows.column(DELETED)))
    for batch in rows.combine_chunks().to_batches():
        yield as_schema(batch, columns)
