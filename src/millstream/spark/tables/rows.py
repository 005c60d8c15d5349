"""Rows of a continuous table: what tasks make of the records of a batch.

Records of a log with a schema have a column for each field, and no `value`; a record that does not fit
has its text in `_corrupt` and its bytes in `value`. Where a field has no column, all records have their
`value` as well. Records of other logs have `value` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.partitioning import partition_of
from millstream.spark.archive.archive import ArchivedFile
from millstream.spark.archive.partitioning import PartitionBy
from millstream.spark.archive.task import PartitionFiles
from millstream.spark.archive.typed_columns import CORRUPT, TypedColumns, as_schema, union
from millstream.spark.source.losses import Loss
from millstream.spark.source.positions import Position

if TYPE_CHECKING:
    from millstream.spark.archive.folders import Folder

DELETED = "_deleted"
"""A column of staged rows: whether the record is a tombstone."""


def base_columns() -> pa.Schema:
    """Return the columns of all logs; pyspark's own parser of types would need Java."""
    from millstream.spark.source.layout import arrow_schema, log_schema

    return union([arrow_schema(log_schema("typed"))])


def write_rows(
    batches: Iterable[pa.RecordBatch],
    typed: Mapping[str, TypedColumns],
    columns: pa.Schema,
    *,
    folder: Folder,
    by: PartitionBy,
    codec: str,
    upserts: bool,
) -> list[ArchivedFile]:
    """Write records to staged files with the columns of a table; return the files.

    With `upserts` the files also say which records are tombstones.
    """
    schema = columns.append(pa.field(DELETED, pa.bool_())) if upserts else columns
    files = PartitionFiles(folder, schema, by, codec, has_unique_offsets=False)
    for batch in batches:
        for topic, rows in _by_topic(batch):
            files.add(as_schema(table_rows(rows, typed.get(topic)), schema))
    return files.close()


def table_rows(rows: pa.RecordBatch, columns: TypedColumns | None) -> pa.RecordBatch:
    """Return records of a log as rows of the table, and whether each is a tombstone."""
    is_deleted = rows.column("value").is_null()
    if columns is not None:
        rows = columns.added_to(rows)
        if columns.have_all_fields:
            fits = rows.column(CORRUPT).is_null()
            value = pc.if_else(fits, pa.scalar(None, pa.binary()), rows.column("value"))
            rows = rows.set_column(rows.schema.get_field_index("value"), "value", value)
    return rows.append_column(DELETED, is_deleted)


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = batch.column("topic")
    names = topics.unique().to_pylist()
    for name in names:
        yield name, batch if len(names) == 1 else batch.filter(pc.equal(topics, name))


def encoded(files: list[ArchivedFile]) -> pa.RecordBatch:
    """Return descriptions of files as a row for Spark's driver."""
    return pa.record_batch({"files": pa.array([msgspec.json.encode(files)], pa.binary())})


def decoded(data: bytes) -> list[ArchivedFile]:
    """Return descriptions of files as a task sent them."""
    return msgspec.json.decode(data, type=list[ArchivedFile])


def missing_rows(tables: Sequence[pa.Table], starts: Position, ends: Position) -> list[Loss]:
    """Return the ranges of offsets that staged rows of a batch lack; a partition is a log."""
    offsets: dict[tuple[str, int], list[np.ndarray]] = {}
    for table in tables:
        for batch in table.to_batches():
            for topic, rows in _by_topic(batch):
                for part in rows.column("partition").unique().to_pylist():
                    of_part = rows.filter(pc.equal(rows.column("partition"), part))
                    found = of_part.column("offset").to_numpy()
                    offsets.setdefault((topic, part), []).append(found)
    lost = []
    for log, end in ends.items():
        present = offsets.get((log, 0)) or offsets.get(partition_of(log) or (log, 0), [])
        edges = np.sort(np.concatenate([[starts[log] - 1], *present, [end]]))
        for at in np.flatnonzero(np.diff(edges) > 1):
            start, stop = int(edges[at]) + 1, int(edges[at + 1])
            extent = f"log {log!r}: the records at offsets {start} to {stop - 1}"
            lost.append(Loss(log, start, stop, f"{extent} are truncated or damaged"))
    return lost
