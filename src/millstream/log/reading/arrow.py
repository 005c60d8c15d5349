"""Columns of a stored block as Arrow arrays, without a copy where the bytes lie as Arrow wants them.

It needs pyarrow, so that only the modules which hand out Arrow import it: the server's endpoint and
the data source of Spark. Which columns there are, and in which unit times are, is theirs.
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
"""The types of a header's value, and the letter under which a typed header has one of that type."""


def key_column(block: RecordBlock, metadata: stored.Block) -> pa.Array:
    """The keys of a block's records; null where there is none."""
    return _binary(block, metadata.buffers(stored.KEY), metadata.validity_bits())


def value_column(block: RecordBlock, metadata: stored.Block, payload: stored.Block) -> pa.Array:
    """The values of a block's records; null where one is a tombstone."""
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
    whole = pa.Array.from_buffers(pa.binary(), last, [bits, offsets, data])
    return whole.slice(block.skip, block.count) if block.skip else whole


def int64_column(numbers: Any) -> pa.Array:
    """Numbers of eight bytes, over the memory that they lie in."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def list_offsets(ends: array[int]) -> pa.Array:
    """Where each list of a column ends in the column of its items; the first number is 0."""
    return pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(ends)])


def lettered_columns(values: Sequence[Any]) -> list[pa.Array]:
    """Values of headers as one column for each of `LETTERS`; null has none of them."""
    kinds = set(map(type, values))
    return [
        pa.array([value if type(value) is kind else None for value in values], arrow)
        if kind in kinds
        else pa.nulls(len(values), arrow)
        for kind, _, arrow in LETTERS
    ]
