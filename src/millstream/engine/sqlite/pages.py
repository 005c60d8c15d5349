"""Checksums of SQLite's pages, and the layer of SQLite that keeps them.

The checksum beside each row cannot show a row that an index no longer finds. SQLite's checksum layer
(`cksumvfs`, part of apsw's wheels) works below the pages: it writes a checksum into the last 8 bytes
of each page of the file, and compares it at each read.

    page    4,088 bytes, then two sums over their 32-bit words, little-endian

The frames of the write-ahead log carry sums of the same kind, over all earlier frames.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Iterator

import apsw

RESERVED_BYTES = 8
"""Bytes at the end of each page for its checksum. SQLite's header holds this number."""

_LAYER = "cksmvfs"
_MASK = 0xFFFFFFFF
_loading = threading.Lock()
_loaded: list[str | None] = []


def checksum_layer() -> str | None:
    """Return the name of SQLite's checksum layer; None with an apsw without the layer."""
    with _loading:
        if not _loaded:
            _loaded.append(_load())
        return _loaded[0]


def _load() -> str | None:
    try:
        from apsw import sqlite_extra

        if sqlite_extra.has("cksumvfs") is None or not hasattr(apsw.Connection, "reserve_bytes"):
            return None
        default = apsw.vfs_names()[0]
        connection = apsw.Connection(":memory:")
        try:
            sqlite_extra.load(connection, "cksumvfs")
        finally:
            connection.close()
        apsw.set_default_vfs(default)  # other databases of the process do not use the layer
    except (ImportError, AttributeError, apsw.Error):
        return None
    return _LAYER


def plain_layer() -> str:
    """Return the name of the layer below the checksum layer, which does not check pages."""
    return next(name for name in apsw.vfs_names() if name != checksum_layer())


def is_layered(connection: apsw.Connection) -> bool:
    """True if pages go through the checksum layer; the file may have no checksums."""
    return connection.pragma("checksum_verification") is not None


def is_verified(connection: apsw.Connection) -> bool:
    """True if SQLite compares the checksum of each page at each read."""
    return connection.pragma("checksum_verification") in (1, "1")


def fits(page: bytes) -> bool:
    """True if the checksum of a page fits its content."""
    content, stored = page[:-RESERVED_BYTES], page[-RESERVED_BYTES:]
    first, second = sums(content, swap=sys.byteorder == "big")
    return stored == first.to_bytes(4, "little") + second.to_bytes(4, "little")


def sums(data: bytes, seeds: tuple[int, int] = (0, 0), *, swap: bool) -> tuple[int, int]:
    """Return SQLite's two sums over 32-bit words; `swap` for a foreign byte order."""
    words = array("I", data)
    if swap:
        words.byteswap()
    first, second = seeds
    pairs = iter(words)
    for even, odd in zip(pairs, pairs, strict=True):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second


def is_one_bit(computed: tuple[int, int], stored: tuple[int, int], data_bytes: int) -> bool:
    """True if one flipped bit, in the data or in its sums, explains the difference of the sums.

    The sums are linear: a bit adds or subtracts a power of two, times a factor that depends on its
    word alone. A torn write looks so with a chance of about 1 in 10^14.
    """
    if sum((a ^ b).bit_count() for a, b in zip(computed, stored, strict=True)) == 1:
        return True
    wrong = tuple((b - a) & _MASK for a, b in zip(computed, stored, strict=True))
    return any(
        wrong == (step * first & _MASK, step * second & _MASK)
        for first, second in _factors(data_bytes // 8)
        for bit in range(32)
        for step in (1 << bit, -(1 << bit))
    )


def _factors(pairs: int) -> Iterator[tuple[int, int]]:
    """Yield the factors by which a word changes both sums, from the last pair of words to the first."""
    even, odd = (1, 1), (0, 1)
    for _ in range(pairs):
        yield even
        yield odd
        even, odd = _passed(even), _passed(odd)


def _passed(change: tuple[int, int]) -> tuple[int, int]:
    first = (change[0] + change[1]) & _MASK
    return first, (change[1] + first) & _MASK
