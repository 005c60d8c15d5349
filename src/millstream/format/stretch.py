"""Stretches: messages as columns, on their way into one of the RFC's arrays.

A fold writes thousands of messages at a time; most are neighbours whose ids follow one another.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple


class Stretch(NamedTuple):
    """Messages whose ids follow one another, and what a record says of each, as columns."""

    message_id: int
    claim_id: int
    numbers: tuple[Sequence[int], ...]
    """The other fixed fields, in the record's order."""
    prefix: bytes
    """What the metadata of all of them starts with."""
    rests: Sequence[bytes]
    sizes: array[int]
    """The lengths of the metadata, u32, each with the prefix."""


class Scattered(NamedTuple):
    """The same of messages whose ids do not follow one another."""

    message_ids: list[int]
    claim_ids: list[int]
    numbers: tuple[Sequence[int], ...]
    rests: list[bytes]


FEW = 8
"""Up to so many messages, each is packed by itself."""

_SWAP = sys.byteorder == "big"
_LOW = bytes(range(256)) * 256
_HIGH = b"".join(bytes((n,)) * 256 for n in range(256))
"""The lower and the higher byte of the numbers up to 65,535."""


def spread_ids(heads: bytearray, at: int, width: int, ids: range) -> None:
    """Write adjacent ids into every `width` bytes; the first id stands there already."""
    low = ids.start & 0xFFFF
    if low + len(ids) > 0x10000:
        spread(heads, at, width, array("Q", ids))
        return
    heads[at::width] = _LOW[low : low + len(ids)]
    heads[at + 1 :: width] = _HIGH[low : low + len(ids)]


def spread(heads: bytearray, at: int, width: int, column: array[int]) -> None:
    """Write numbers into every `width` bytes; the first number stands there already."""
    size, data = column.itemsize, column.tobytes()
    if data == data[:size] * len(column):
        return
    for byte in range(size):
        place = size - 1 - byte if _SWAP else byte
        heads[at + place :: width] = data[byte::size]


CUTS_MAX = 1_024
"""Pieces that are cut at once: how to is remembered, which takes memory by their number."""


@lru_cache(maxsize=64)
def cuts(width: int, count: int) -> struct.Struct:
    """How bytes are cut into so many pieces of a width."""
    return struct.Struct(f"{width}s" * count)
