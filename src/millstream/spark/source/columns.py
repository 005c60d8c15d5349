"""Stored blocks as Arrow record batches.

Values, keys and times are handed over as the buffers that were stored; nothing is done per record
but for headers, which are decoded where they were asked for. Small blocks are joined into larger
batches, because each batch costs Spark a fixed time. Arrays are made from buffers: what makes them
from Python objects imports pandas, which would double the start of every worker.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.format import block as stored
from millstream.header import Plain, Scalar
from millstream.log.model.block import RecordBlock, plain_headers_of, visible_headers_of
from millstream.log.reading.arrow import (
    LETTERS,
    int64_column,
    key_column,
    lettered_columns,
    list_offsets,
    value_column,
)

ROWS_PER_BATCH = 8_192
"""Rows from which a batch is handed on: larger ones do not make Spark faster."""

BYTES_PER_BATCH = 8 * 1024 * 1024

_TIME = pa.timestamp("us", tz="UTC")
_encode = msgspec.msgpack.Encoder().encode


Shown = Callable[[str], tuple[str, int]]
"""From a log to the topic and the partition that its rows have."""


class DecodedBlock:
    """One block, decoded as far as its columns ask for; `trusted` if a store has checked its rows."""

    def __init__(
        self, block: RecordBlock, *, trusted: bool = False, shown: Shown | None = None
    ) -> None:
        self.block = block
        self.topic, self.partition = (block.log, 0) if shown is None else shown(block.log)
        self._trusted = trusted

    @cached_property
    def metadata(self) -> stored.Block:
        """The block's metadata."""
        return stored.Block(self.block.metadata, kind=stored.METADATA, trusted=self._trusted)

    def payload(self) -> stored.Block:
        """The block's payload."""
        return stored.Block(self.block.payload, kind=stored.PAYLOAD, trusted=self._trusted)

    def visible_headers(self) -> list[dict[str, Scalar]]:
        """The headers of its records as filters see them."""
        return visible_headers_of(self.metadata, self.block.skip, self.block.count)

    def headers(self) -> list[Plain]:
        """The headers of its records."""
        return plain_headers_of(self.metadata, self.block.skip, self.block.count)


def batches(
    blocks: Iterable[RecordBlock],
    schema: pa.Schema,
    *,
    trusted: bool = False,
    shown: Shown | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks as record batches with the columns of the schema."""
    block_batches = (batch_of(block, schema, trusted=trusted, shown=shown) for block in blocks)
    return joined(block_batches, schema)


def batch_of(
    block: RecordBlock, schema: pa.Schema, *, trusted: bool = False, shown: Shown | None = None
) -> pa.RecordBatch:
    """One block as a record batch."""
    piece = DecodedBlock(block, trusted=trusted, shown=shown)
    return pa.RecordBatch.from_arrays([_column(piece, field) for field in schema], schema=schema)


def joined(small_batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches as fewer, larger ones."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in small_batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.get_total_buffer_size()  # 90 times as fast as `nbytes`, which looks at slices
        if rows >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
            yield _joined(waiting, schema)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting, schema)


def _joined(small_batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(small_batches) == 1:
        return small_batches[0]
    whole = pa.Table.from_batches(small_batches, schema).combine_chunks().to_batches()
    return whole[0] if whole else small_batches[0]  # a table without rows has no batch


def _column(piece: DecodedBlock, field: pa.Field) -> pa.Array:
    """One column of a block, of the type that Spark expects."""
    block = piece.block
    match field.name:
        case "value":
            return value_column(block, piece.metadata, piece.payload())
        case "key":
            return key_column(block, piece.metadata)
        case "topic":
            return _same_text(piece.topic, block.count)
        case "partition":
            return _same_number(piece.partition, block.count)
        case "offset":
            return int64_column(np.arange(block.offsets.start, block.offsets.stop, dtype=np.int64))
        case "timestamp":
            return times_of(piece, stored.TIMESTAMP).view(_TIME)
        case "appendTimestamp":
            return times_of(piece, stored.APPENDED).view(_TIME)
    has_some = piece.metadata.header.columns & stored.HEADERS
    return header_column(piece.headers() if has_some else [{}] * block.count, field.type)


@lru_cache(maxsize=64)
def _same_text(text: str, count: int) -> pa.Array:
    data = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(data)
    buffers = [None, pa.py_buffer(ends.data), pa.py_buffer(data * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


@lru_cache(maxsize=64)
def _same_number(number: int, count: int) -> pa.Array:
    data = number.to_bytes(4, "little") * count
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(data)])


def times_of(piece: DecodedBlock, column: int) -> pa.Array:
    """The timestamps of a block's records, or when they were appended, in microseconds."""
    metadata, block = piece.metadata, piece.block
    is_appended = column == stored.APPENDED
    constant_ms = metadata.appended_ms() if is_appended else metadata.timestamp_ms()
    if constant_ms is not None:
        return int64_column(np.full(block.count, constant_ms * 1000, dtype=np.int64))
    ask = metadata.appended if is_appended else metadata.timestamps
    return int64_column(np.asarray(ask(block.skip, block.count)) * 1000)


def header_column(record_headers: Sequence[Plain], kind: pa.DataType) -> pa.Array:
    """Headers as Spark wants them: Kafka's array of pairs, or a map of typed values.

    A map has of each name the last value. Where a name is repeated, all pairs stand packed beside
    the value of the first, under `p`, so that they are not lost on their way.
    """
    ends = array("i", [0])
    names: list[str] = []
    values: list[Any] = []
    packed: dict[int, bytes] = {}
    is_map = pa.types.is_map(kind)
    total = 0
    for headers in record_headers:
        if isinstance(headers, tuple):
            if is_map:
                packed[total] = _encode(headers)
                headers = dict(headers)
            else:
                names += [name for name, _ in headers]
                values += [value for _, value in headers]
        if isinstance(headers, dict):
            names += headers
            values += headers.values()
        total += len(headers)
        ends.append(total)
    offsets = list_offsets(ends)
    keys = pa.array(names, pa.string())
    if is_map:
        return pa.MapArray.from_arrays(offsets, keys, _typed(values, packed)).cast(kind)
    entries = pa.StructArray.from_arrays(
        [keys, pa.array(map(_text, values), pa.binary())], names=["key", "value"]
    )
    return pa.ListArray.from_arrays(offsets, entries).cast(kind)


def _typed(values: list[Any], packed: dict[int, bytes]) -> pa.StructArray:
    """Put each value into the column of its type; a null is null in every column."""
    columns = lettered_columns(values)
    columns.append(
        pa.array([packed.get(at) for at in range(len(values))], pa.binary())
        if packed
        else pa.nulls(len(values), pa.binary())
    )
    return pa.StructArray.from_arrays(columns, names=[*(letter for _, letter, _ in LETTERS), "p"])


def _text(value: Any) -> bytes | None:
    """A header as Kafka would carry it: bytes, text as UTF-8, anything else as JSON writes it."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode()
