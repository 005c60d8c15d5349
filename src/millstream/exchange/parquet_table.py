"""Parquet: a record per row; keys and values are bytes, headers are JSON. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import InvalidInput
from millstream.exchange.rows import RecordColumns, RowChunk, checked, chunk_of
from millstream.exchange.selection import ChosenRecords
from millstream.exchange.values import decode_headers, shown_headers
from millstream.limits import MiB

SCHEMA = pa.schema(
    [
        pa.field("log", pa.string(), nullable=False),
        pa.field("partition", pa.int32()),
        pa.field("partitions", pa.int32()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.string(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)
GROUP_ROWS_MAX = 100_000
GROUP_BYTES_MAX = 32 * MiB
READ_COLUMNS = ("log", "value", "key", "headers", "timestamp", "partitions")
CHUNK_ROWS = 1_000


class ParquetWriter:
    """Writes records to a stream, in row groups of bounded size."""

    def __init__(self, stream: BinaryIO) -> None:
        self._writer = pq.ParquetWriter(stream, SCHEMA, compression="snappy")
        self._waiting: list[Any] = []
        self._rows = self._bytes = 0

    def write(self, records: ChosenRecords) -> None:
        """Add a row per record; a full row group is written."""
        log, count = records.log, len(records.offsets)
        columns: list[Any] = [
            [log.name] * count,
            [log.partition] * count,
            [log.partitions or None] * count,
            list(records.offsets),
            records.timestamps,
            records.keys,
            shown_headers(records.cells)[0],
            records.values,
        ]
        arrays = [pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        self._waiting.append(batch)
        self._rows += count
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS_MAX or self._bytes >= GROUP_BYTES_MAX:
            self._write_group()

    def close(self) -> None:
        """Write the last row group and the footer; the stream stays open."""
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, SCHEMA))
        self._waiting, self._rows, self._bytes = [], 0, 0


def read_parquet(stream: BinaryIO, *, needs_log: bool) -> Iterator[RowChunk]:
    """Yield the records of a file, some thousand rows at a time, and the rows that are bad."""
    try:
        file = pq.ParquetFile(stream)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"the file is not Parquet: {error}") from error
    present = file.schema_arrow.names
    if "value" not in present:
        raise InvalidInput(
            f"the table has no column `value`; an export has {', '.join(SCHEMA.names)}"
        )
    names = [name for name in SCHEMA.names if name in present]

    def convert(rows: Sequence[tuple[Any, ...]]) -> RecordColumns:
        return _records(rows, needs_log=needs_log)

    first = 1
    for batch in file.iter_batches(batch_size=CHUNK_ROWS, columns=names):
        columns = _columns(batch)
        rows = list(zip(*(columns[name] for name in READ_COLUMNS), strict=True))
        yield chunk_of(rows, first, convert)
        first += batch.num_rows


def _columns(batch: Any) -> dict[str, list[Any]]:
    """Return the columns as Python values of the schema's types; missing columns are null."""
    columns = {}
    for field in SCHEMA:
        if field.name not in batch.schema.names:
            columns[field.name] = [None] * batch.num_rows
            continue
        kind = pa.int64() if pa.types.is_timestamp(field.type) else field.type
        try:
            column = batch.column(field.name)
            if kind is not field.type and pa.types.is_timestamp(column.type):
                column = column.cast(field.type)
            columns[field.name] = column.cast(kind).to_pylist()
        except pa.ArrowException as error:
            raise InvalidInput(f"column `{field.name}` is not {field.type}: {error}") from error
    return columns


def _records(rows: Sequence[tuple[Any, ...]], *, needs_log: bool) -> RecordColumns:
    logs, values, keys, headers, timestamps, partitions = zip(*rows, strict=True)
    records = RecordColumns(
        [log or "" for log in logs],
        values,
        keys,
        [decode_headers((cell or "").encode()) for cell in headers],
        timestamps,
        [count or 0 for count in partitions],
    )
    return checked(records, needs_log=needs_log)
