"""The protocol of a table over an archive's files, and the changes of a commit.

Each commit notes the end of each log under `OFFSETS`. The modules of Delta and Iceberg store the
note in their own way, and `lake` decides which files a table should have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
from msgspec import Struct

from millstream.spark.archive.archive import ArchivedFile, Segment
from millstream.spark.archive.partitioning import BY_DATE, PartitionBy
from millstream.spark.source.positions import Position

OFFSETS = "millstream.offsets"
"""The property of a commit that says where the table ends in each log."""


class TableLayout(Struct, frozen=True):
    """The columns that a table needs beside those of all logs, and its partitions."""

    fields: tuple[pa.Field, ...] = ()
    by: PartitionBy = BY_DATE


class Changes(Struct, frozen=True, kw_only=True):
    """The changes of a commit."""

    added: list[tuple[Segment, ArchivedFile]]
    removed: set[str]
    """Addresses of the removed files, as other libraries open them."""
    ends: Position
    """The end of the archive of every log."""
    grown: set[str]
    """Logs with added files."""


class ArchiveTable(Protocol):
    """A table over the files of an archive, created on first use."""

    def files(self) -> set[str]:
        """Return the addresses of the table's files, as other libraries open them."""
        ...

    def version(self) -> int:
        """Return the newest version, or -1."""
        ...

    def commit(self, changes: Changes) -> None:
        """Apply the changes atomically."""
        ...

    def history(self) -> Iterator[tuple[int, Position]]:
        """Yield the versions, oldest first, each with the end of its logs."""
        ...

    def files_of(self, version: int) -> set[str]:
        """Return the files of a version."""
        ...

    def expire(self, before_ms: int) -> None:
        """Forget versions that are older than a time, except the newest version."""
        ...
