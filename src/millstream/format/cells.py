"""Cells: a column of byte strings, each found through its offset.

    u32[count + 1]  offsets of the cells from the first one, ascending, little-endian
    padding to 8 bytes
    the cells, back to back
    padding to 8 bytes

A block has thousands of cells, so sizes and cuts are computed for a whole column at once. Sizes come
from one subtraction of big integers: the offsets are their 32-bit limbs, all less than 2^31, so no
carry or borrow crosses a limb. Cells are cut by reading the column as a stream.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from itertools import accumulate

from millstream.errors import CorruptionError

EVEN_RECORDS_MAX = 16_384
"""Up to so many records the offsets of cells of one size are kept for the next block."""

_SWAP = sys.byteorder == "big"


def encode_cells(items: Sequence[bytes]) -> list[bytes]:
    """A column, in parts to be joined."""
    sizes = list(map(len, items))
    count = len(sizes)
    if 0 < count <= EVEN_RECORDS_MAX and sizes.count(sizes[0]) == count:
        offsets, total = _even_offsets(count, sizes[0]), count * sizes[0]
    else:
        ends = list(accumulate(sizes, initial=0))
        offsets, total = _pack_offsets(ends), ends[-1]
    parts = [offsets, *items]
    if total % 8:
        parts.append(bytes(-total % 8))
    return parts


CUTS_MAX = 1_024
"""Pieces that are cut at once: their layout is cached, which takes memory by their number."""


@lru_cache(maxsize=64)
def cuts(width: int, count: int) -> struct.Struct:
    """How bytes are cut into so many pieces of a width."""
    return struct.Struct(f"{width}s" * count)


class Cells:
    """One column of a block, checked."""

    __slots__ = ("_data", "_full", "_offsets", "_sizes", "base", "count", "ends", "size")

    def __init__(self, data: bytes, start: int, count: int) -> None:
        self.count = count
        self.base = start + round8(4 * (count + 1))
        """Where the first cell begins."""
        if self.base > len(data):
            raise CorruptionError("a block's column is cut", what="block body", where=start)
        self._data = data
        self._offsets = start
        packed = data[start : start + 4 * (count + 1)]
        self.ends = _u32s(packed)
        """Where each ends, from there on; before the first stands 0."""
        self.size = _common_size(self.ends)
        """What all cells have, or 0."""
        self._sizes: array[int] | None = None
        self._full: bool | None = True if self.size else None
        if not self.size:
            try:
                self._sizes = _differences(packed)
            except ValueError:
                raise CorruptionError(
                    "a block's offsets do not ascend", what="block body", where=start
                ) from None

    @property
    def stop(self) -> int:
        """Where the column ends."""
        return self.base + round8(self.ends[-1])

    def cell(self, index: int) -> bytes:
        """One of them, in O(1)."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        base, ends = self.base, self.ends
        return self._data[base + ends[index] : base + ends[index + 1]]

    def cut(self, first: int, count: int) -> list[bytes]:
        """Some of them, one by one."""
        size, start = self.size, self.base + self.ends[first]
        if size and 0 < count <= CUTS_MAX:
            return list(cuts(size, count).unpack_from(self._data, start))
        rest = BytesIO(self._data)
        rest.seek(start)
        return list(map(rest.read, self.sizes()[first : first + count]))

    def pick(self, indexes: Sequence[int]) -> list[bytes]:
        """Some of them that need not be neighbours."""
        data, base, ends = self._data, self.base, self.ends
        return [data[base + ends[at] : base + ends[at + 1]] for at in indexes]

    def joined(self, first: int, count: int) -> bytes:
        """Some of them, back to back."""
        base, ends = self.base, self.ends
        return self._data[base + ends[first] : base + ends[first + count]]

    def any_is_empty(self, first: int, count: int) -> bool:
        """Whether one of some is empty."""
        return not self.is_full() and 0 in self.sizes()[first : first + count]

    def sizes(self) -> array[int]:
        """The size of each, u32."""
        if self._sizes is None:
            self._sizes = array("I", [self.size]) * self.count
        return self._sizes

    def is_full(self) -> bool:
        """Whether none of them is empty; found out once."""
        if self._full is None:
            sizes = self.sizes()
            # Mostly a look at the lowest byte of each will do.
            self._full = 0 not in sizes.tobytes()[3 * _SWAP :: 4] or 0 not in sizes
        return self._full

    def buffers(self) -> tuple[memoryview, memoryview]:
        """The offsets and the bytes, as Arrow wants them, without a copy."""
        view, start = memoryview(self._data), self._offsets
        return view[start : start + 4 * len(self.ends)], view[self.base :][: self.ends[-1]]


def _differences(packed: bytes) -> array[int]:
    """How far each offset is from the one before; ValueError if they do not ascend from 0."""
    size = len(packed) - 4
    try:
        found = int.from_bytes(packed[4:], "little") - int.from_bytes(packed[:size], "little")
        sizes = found.to_bytes(size, "little")
    except OverflowError as error:
        raise ValueError("the last is less than the first") from error
    # An offset below the one before borrows, and so has its highest bit set.
    if any(packed[:4]) or not (packed[3::4].isascii() and sizes[3::4].isascii()):
        raise ValueError("an offset is less than the one before")
    return _u32s(sizes)


def _common_size(ends: array[int]) -> int:
    """The size of every cell; 0 if they differ, or are empty."""
    count = len(ends) - 1
    if not 0 < count <= EVEN_RECORDS_MAX or ends[-1] != count * ends[1]:
        return 0
    return ends[1] if ends == _even_ends(count, ends[1]) else 0


@lru_cache(maxsize=32)
def _even_ends(count: int, size: int) -> array[int]:
    """What `_even_offsets` packs."""
    return array("I", range(0, (count + 1) * size, size) if size else [0] * (count + 1))


@lru_cache(maxsize=32)
def _even_offsets(count: int, size: int) -> bytes:
    """The offsets of cells that are all of the same size, as they often are."""
    return _pack_offsets(_even_ends(count, size))


def _pack_offsets(ends: Sequence[int]) -> bytes:
    return _packing(len(ends)).pack(*ends) + bytes(4 * (len(ends) % 2))


@lru_cache(maxsize=64)
def _packing(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


def round8(size: int) -> int:
    """A size with its padding to 8 bytes."""
    return (size + 7) & ~7


def _u32s(packed: bytes) -> array[int]:
    numbers = array("I", packed)
    if _SWAP:
        numbers.byteswap()
    return numbers
