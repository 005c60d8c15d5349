"""A set of message ids: one bit per id, in chunks that are allocated on first use."""

from __future__ import annotations

CHUNK_BITS = 16
_MASK = (1 << CHUNK_BITS) - 1


class Visited:
    """A set of ids that takes an eighth of a byte for each, where they lie close together."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}

    def add(self, number: int) -> bool:
        """Add an id; False if the set contains it already."""
        chunk = self._chunks.setdefault(number >> CHUNK_BITS, bytearray(1 << (CHUNK_BITS - 3)))
        at, bit = (number & _MASK) >> 3, 1 << (number & 7)
        if chunk[at] & bit:
            return False
        chunk[at] |= bit
        return True

    def __contains__(self, number: int) -> bool:
        chunk = self._chunks.get(number >> CHUNK_BITS)
        return chunk is not None and bool(chunk[(number & _MASK) >> 3] & 1 << (number & 7))
