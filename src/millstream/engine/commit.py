"""A commit as a value: all changes of one commit or fold to the rows.

A commit lists the rows and ranges to delete, and the rows to put afterwards. Applied to the same rows,
it leaves the same rows on every engine, byte for byte. So a cluster sends commits to other nodes before
the leader stores them. Changes to the application's own tables (`tx.sql`) are not included.

Values beyond the first 64 MiB of a commit lie in a temporary file (`Spool`) until the commit is
garbage collected.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from millstream.errors import WriteFailed

Row = tuple[bytes, bytes]
"""A key and its value."""

MEMORY_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of values that one commit holds in memory; later values are spooled."""

SPOOLED_BYTES_MIN = 1024
"""Smaller values stay in memory: the note of their position would be as large."""


class Spool:
    """A temporary file without a name, with values that a commit refers to."""

    def __init__(self, folder: Path | None) -> None:
        self._descriptor, path = tempfile.mkstemp(prefix="millstream-commit-", dir=folder)
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        os.unlink(path)
        self._size = 0

    def add(self, value: bytes) -> Spooled:
        """Write a value to the file, and return its position."""
        spooled = Spooled(self, self._size, len(value))
        unwritten = memoryview(value)
        while unwritten:
            written = os.pwrite(self._descriptor, unwritten, self._size)
            unwritten, self._size = unwritten[written:], self._size + written
        return spooled

    def read(self, position: int, size: int) -> bytes:
        """Read a value at its position, on any thread."""
        return os.pread(self._descriptor, size, position)


class Spooled:
    """The position of a value in a spool."""

    __slots__ = ("_position", "_size", "_spool")

    def __init__(self, spool: Spool, position: int, size: int) -> None:
        self._spool, self._position, self._size = spool, position, size

    def __len__(self) -> int:
        return self._size

    def read(self) -> bytes:
        """Return the value; raise `WriteFailed` if the file cannot be read."""
        try:
            value = self._spool.read(self._position, self._size)
        except OSError as error:
            raise WriteFailed(f"a temporary file could not be read: {error}") from error
        if len(value) != self._size:
            raise WriteFailed("a temporary file of a large commit is shorter than it was")
        return value


Value = bytes | Spooled


def loaded(value: Value) -> bytes:
    """Return a value from memory or from its spool."""
    return value if type(value) is bytes else value.read()  # type: ignore[union-attr]


class SpooledRows:
    """Rows with values in memory or in a spool, each key once; can be iterated repeatedly."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[bytes, Value]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def all_keys(self) -> Collection[bytes]:
        """Return all keys, without reading a value."""
        return self._values.keys()

    def of(self, selected: Iterable[bytes]) -> Iterator[Row]:
        """Return the rows of selected keys; the iterator reads each value lazily."""
        return ((key, loaded(self._values[key])) for key in selected)

    def size_bytes(self) -> int:
        """Return the bytes of all keys and values, without reading a value."""
        return sum(len(key) + len(value) for key, value in self._values.items())

    def __contains__(self, row: object) -> bool:
        return any(present == row for present in self)

    def __iter__(self) -> Iterator[Row]:
        for key, value in self._values.items():
            yield key, loaded(value)


class Commit(Struct, frozen=True, gc=False):
    """Rows to delete, and rows to put afterwards.

    `rows` has each key once, and can be iterated repeatedly. `deletes` are single keys, `ranges` are
    half-open ranges of keys; a missing row is no error. An engine that can delete only single rows
    walks through a range in steps.
    """

    rows: Collection[Row] = ()
    deletes: Collection[bytes] = ()
    ranges: Collection[tuple[bytes, bytes]] = ()

    def size_bytes(self) -> int:
        """Return the bytes of the rows to put: keys and values."""
        if isinstance(self.rows, SpooledRows):
            return self.rows.size_bytes()
        return sum(len(key) + len(value) for key, value in self.rows)
