"""Cells: a column of byte strings that are found by their offsets.

    u32[count + 1]  offsets of the cells from the first cell, ascending, little-endian
    padding to 8 bytes
    the cells, back to back
    padding to 8 bytes

A block has thousands of cells, so sizes and cuts are computed for a complete column. Sizes come from
one subtraction of big integers: the offsets are their 32-bit limbs, all less than 2^31, so no carry or
borrow crosses a limb. Cells are cut by reading the column as a stream.
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
"""Maximum of records for which the offsets of equally large cells are cached."""

_SWAP = sys.byteorder == "big"


def encode_cells(items: Sequence[bytes]) -> list[bytes]:
    """Encode a column, as byte strings to join."""
    sizes = list(map(len, items))
    count = len(sizes)
    if 0 < count <= EVEN_RECORDS_MAX and sizes.count(sizes[0]) == count:
        offsets, total = _even_offsets(count, sizes[0]), count * sizes[0]
    else:
        ends = list(accumulate(sizes, initial=0))
        offsets, total = _pack_offsets(ends), ends[-1]
    pieces = [offsets, *items]
    if total % 8:
        pieces.append(bytes(-total % 8))
    return pieces


CUTS_MAX = 1_024
"""Maximum of pieces in one cut: its layout is cached, and the memory grows with the pieces."""


@lru_cache(maxsize=64)
def cuts(width: int, count: int) -> struct.Struct:
    """Return the layout that cuts bytes into `count` pieces of a width."""
    return struct.Struct(f"{width}s" * count)


class Cells:
    """One column of a block, checked."""

    __slots__ = ("_data", "_full", "_offsets", "_sizes", "base", "count", "ends", "size")

    def __init__(self, data: bytes, start: int, count: int) -> None:
        self.count = count
        self.base = start + round8(4 * (count + 1))
        """The position of the first cell."""
        if self.base > len(data):
            raise CorruptionError("a block's column is cut", what="block body", where=start)
        self._data = data
        self._offsets = start
        packed = data[start : start + 4 * (count + 1)]
        self.ends = _u32s(packed)
        """The ends of the cells, relative to `base`, behind a leading 0."""
        self.size = _common_size(self.ends)
        """The common size of all cells; 0 for different sizes."""
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
        """The position behind the column."""
        return self.base + round8(self.ends[-1])

    def cell(self, index: int) -> bytes:
        """Return a cell, in O(1)."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        base, ends = self.base, self.ends
        return self._data[base + ends[index] : base + ends[index + 1]]

    def cut(self, first: int, count: int) -> list[bytes]:
        """Return `count` neighbouring cells as a list."""
        size, start = self.size, self.base + self.ends[first]
        if size and 0 < count <= CUTS_MAX:
            return list(cuts(size, count).unpack_from(self._data, start))
        stream = BytesIO(self._data)
        stream.seek(start)
        return list(map(stream.read, self.sizes()[first : first + count]))

    def pick(self, indexes: Sequence[int]) -> list[bytes]:
        """Return the cells at selected indexes."""
        data, base, ends = self._data, self.base, self.ends
        return [data[base + ends[at] : base + ends[at + 1]] for at in indexes]

    def joined(self, first: int, count: int) -> bytes:
        """Return the bytes of `count` neighbouring cells, back to back."""
        base, ends = self.base, self.ends
        return self._data[base + ends[first] : base + ends[first + count]]

    def any_is_empty(self, first: int, count: int) -> bool:
        """True if one of `count` neighbouring cells is empty."""
        return not self.is_full() and 0 in self.sizes()[first : first + count]

    def sizes(self) -> array[int]:
        """Return the sizes of all cells, u32."""
        if self._sizes is None:
            self._sizes = array("I", [self.size]) * self.count
        return self._sizes

    def is_full(self) -> bool:
        """True if no cell is empty; computed once."""
        if self._full is None:
            sizes = self.sizes()
            # In most cases the lowest byte of each size is enough.
            self._full = 0 not in sizes.tobytes()[3 * _SWAP :: 4] or 0 not in sizes
        return self._full

    def buffers(self) -> tuple[memoryview, memoryview]:
        """Return the offsets and the bytes in Arrow's layout, without a copy."""
        view, start = memoryview(self._data), self._offsets
        return view[start : start + 4 * len(self.ends)], view[self.base :][: self.ends[-1]]


def _differences(packed: bytes) -> array[int]:
    """Return the differences of neighbouring offsets; ValueError unless they ascend from 0."""
    size = len(packed) - 4
    try:
        limbs = int.from_bytes(packed[4:], "little") - int.from_bytes(packed[:size], "little")
        sizes = limbs.to_bytes(size, "little")
    except OverflowError as error:
        raise ValueError("the last is less than the first") from error
    # An offset below its predecessor borrows, and so its difference has the highest bit set.
    if any(packed[:4]) or not (packed[3::4].isascii() and sizes[3::4].isascii()):
        raise ValueError("an offset is less than the one before")
    return _u32s(sizes)


def _common_size(ends: array[int]) -> int:
    """Return the common size of all cells; 0 for different sizes or empty cells."""
    count = len(ends) - 1
    if not 0 < count <= EVEN_RECORDS_MAX or ends[-1] != count * ends[1]:
        return 0
    return ends[1] if ends == _even_ends(count, ends[1]) else 0


@lru_cache(maxsize=32)
def _even_ends(count: int, size: int) -> array[int]:
    """Return the unpacked offsets of equally large cells."""
    return array("I", range(0, (count + 1) * size, size) if size else [0] * (count + 1))


@lru_cache(maxsize=32)
def _even_offsets(count: int, size: int) -> bytes:
    """Return the packed offsets of equally large cells, which are common."""
    return _pack_offsets(_even_ends(count, size))


def _pack_offsets(ends: Sequence[int]) -> bytes:
    return _packing(len(ends)).pack(*ends) + bytes(4 * (len(ends) % 2))


@lru_cache(maxsize=64)
def _packing(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


def round8(size: int) -> int:
    """Return a size with its padding to 8 bytes."""
    return (size + 7) & ~7


def _u32s(packed: bytes) -> array[int]:
    numbers = array("I", packed)
    if _SWAP:
        numbers.byteswap()
    return numbers
