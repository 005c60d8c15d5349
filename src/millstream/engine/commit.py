"""A commit as a value: everything that one commit, or one fold, does to the rows.

It says which rows and ranges go, and then which rows are put. Applied to the same rows it always
leaves the same rows, byte for byte, on whatever engine: so it can be sent elsewhere before it is
durable here. The application's own tables (`tx.sql`) are no part of it.

Values beyond the first 64 MiB of a commit lie in a temporary file until the value is let go of.
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
"""Bytes of values that one commit holds in memory; what is put after them is spooled."""

SPOOLED_BYTES_MIN = 1024
"""Smaller values stay in memory: the note of where they lie would be as large."""


class Spool:
    """Values in a temporary file without a name, for as long as a commit refers to them."""

    def __init__(self, folder: Path | None) -> None:
        self._descriptor, path = tempfile.mkstemp(prefix="millstream-commit-", dir=folder)
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        os.unlink(path)
        self._size = 0

    def add(self, value: bytes) -> Spooled:
        """Keep a value in the file."""
        found = Spooled(self, self._size, len(value))
        rest = memoryview(value)
        while rest:
            written = os.pwrite(self._descriptor, rest, self._size)
            rest, self._size = rest[written:], self._size + written
        return found

    def read(self, position: int, size: int) -> bytes:
        """A value that was added; any thread may ask."""
        return os.pread(self._descriptor, size, position)


class Spooled:
    """Where a value lies in a spool."""

    __slots__ = ("_position", "_size", "_spool")

    def __init__(self, spool: Spool, position: int, size: int) -> None:
        self._spool, self._position, self._size = spool, position, size

    def __len__(self) -> int:
        return self._size

    def read(self) -> bytes:
        """The value."""
        try:
            found = self._spool.read(self._position, self._size)
        except OSError as error:
            raise WriteFailed(f"a temporary file could not be read: {error}") from error
        if len(found) != self._size:
            raise WriteFailed("a temporary file of a large commit is shorter than it was")
        return found


Value = bytes | Spooled


def loaded(value: Value) -> bytes:
    """A value, from wherever it is kept."""
    return value if type(value) is bytes else value.read()  # type: ignore[union-attr]


class SpooledRows:
    """Rows of which some are spooled, each key once; iterated as often as one likes."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[bytes, Value]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def all_keys(self) -> Collection[bytes]:
        """Every key; no value is read."""
        return self._values.keys()

    def of(self, wanted: Iterable[bytes]) -> Iterator[Row]:
        """The rows of some keys, each read when it is taken."""
        return ((key, loaded(self._values[key])) for key in wanted)

    def size_bytes(self) -> int:
        """How many bytes keys and values have; no value is read."""
        return sum(len(key) + len(value) for key, value in self._values.items())

    def __contains__(self, row: object) -> bool:
        return any(found == row for found in self)

    def __iter__(self) -> Iterator[Row]:
        for key, value in self._values.items():
            yield key, loaded(value)


class Commit(Struct, frozen=True):
    """Which rows go, and which rows are put after that.

    `rows` has each key once, and can be iterated again. `deletes` are single keys and `ranges`
    half-open ranges of keys: a missing row is no error. An engine that can delete only single rows
    walks through a range in steps.
    """

    rows: Collection[Row] = ()
    deletes: Collection[bytes] = ()
    ranges: Collection[tuple[bytes, bytes]] = ()

    def size_bytes(self) -> int:
        """How many bytes the rows have that are put: keys and values."""
        if isinstance(self.rows, SpooledRows):
            return self.rows.size_bytes()
        return sum(len(key) + len(value) for key, value in self.rows)
