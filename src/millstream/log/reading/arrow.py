"""Columns of stored blocks as Arrow arrays, without a copy where the layout of the bytes allows it.

This module needs pyarrow. Only the Arrow endpoint of the server and the data source of Spark import it;
they choose the columns and the unit of times.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millstream.format import block as stored
from millstream.log.model.block import RecordBlock

LETTERS = (
    (str, "s", pa.string()),
    (int, "i", pa.int64()),
    (float, "d", pa.float64()),
    (bool, "b", pa.bool_()),
    (bytes, "x", pa.binary()),
)
"""The types of header values, with the letter of the type in a typed header."""


def key_column(block: RecordBlock, metadata: stored.Block) -> pa.Array:
    """Return the keys of a block's records; null for a record without a key."""
    return _binary(block, metadata.buffers(stored.KEY), metadata.validity_bits())


def value_column(block: RecordBlock, metadata: stored.Block, payload: stored.Block) -> pa.Array:
    """Return the values of a block's records; null for a tombstone."""
    validity = metadata.validity_bits(stored.VALUE_VALIDITY)
    return _binary(block, payload.buffers(stored.VALUE), validity)


def _binary(
    block: RecordBlock,
    buffers: tuple[memoryview, memoryview] | None,
    validity: memoryview | None,
) -> pa.Array:
    if buffers is None:
        return pa.nulls(block.count, pa.binary())
    offsets, data = map(pa.py_buffer, buffers)
    bits = None if validity is None else pa.py_buffer(validity)
    last = block.skip + block.count
    column = pa.Array.from_buffers(pa.binary(), last, [bits, offsets, data])
    return column.slice(block.skip, block.count) if block.skip else column


def int64_column(numbers: Any) -> pa.Array:
    """Return an array over the memory of eight-byte numbers."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def list_offsets(ends: array[int]) -> pa.Array:
    """Return the offsets of the lists of a column; the first offset is 0."""
    return pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(ends)])


def lettered_columns(values: Sequence[Any]) -> list[pa.Array]:
    """Return header values as a column per type of `LETTERS`; a null value is null in every column."""
    kinds = set(map(type, values))
    return [
        pa.array([value if type(value) is kind else None for value in values], arrow)
        if kind in kinds
        else pa.nulls(len(values), arrow)
        for kind, _, arrow in LETTERS
    ]
