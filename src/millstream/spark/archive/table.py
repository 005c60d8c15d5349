"""What a table over an archive's files can do, and what one commit changes of it.

Each commit says up to which offset of each log it goes, under `OFFSETS`. How Delta and Iceberg keep
that is left to their own modules, and which files a table should have to `lake`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from millstream.spark.archive.archive import ArchivedFile, Segment
from millstream.spark.source.positions import Position

OFFSETS = "millstream.offsets"
"""The property of a commit that says where the archive of each log ends."""


class Changes(Struct, frozen=True, kw_only=True):
    """What one commit does to a table."""

    added: list[tuple[Segment, ArchivedFile]]
    removed: set[str]
    """What other libraries open those files by."""
    ends: Position
    """Where the archive ends, for every log."""
    grown: set[str]
    """Logs that have files which are added."""


class ArchiveTable(Protocol):
    """A table over the files of an archive; made if it is not there."""

    def files(self) -> set[str]:
        """What other libraries open its files by."""
        ...

    def version(self) -> int:
        """Its newest version, or -1."""
        ...

    def commit(self, changes: Changes) -> None:
        """Make changes, all of them or none."""
        ...

    def history(self) -> Iterator[tuple[int, Position]]:
        """Its versions, oldest first, and where each ends."""
        ...

    def files_of(self, version: int) -> set[str]:
        """The files of a version."""
        ...

    def expire(self, before_ms: int) -> None:
        """Forget versions that are older than a time, but for the newest."""
        ...
