"""The protocol of a table that follows logs.

A commit adds files, removes files, and notes the end of each log with the id of the log, all in one
atomic step. So the table knows its records, and a run after a kill
begins where the newest commit ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from msgspec import Struct

from millstream.clock import SystemClock
from millstream.errors import InvalidInput
from millstream.spark.archive.lake import check_table
from millstream.spark.archive.partitioning import PartitionBy
from millstream.spark.source.positions import LogIds, Position

if TYPE_CHECKING:
    from millstream.spark.archive.archive import ArchivedFile
    from millstream.spark.archive.folders import Folder


class Covered(Struct, frozen=True):
    """The records that a table holds: the end of each log, and the id of the log."""

    ends: Position = {}
    ids: LogIds = {}


class TableFile(Struct, frozen=True, kw_only=True):
    """A file of the current version of a table."""

    path: str
    """The path inside the folder of the table."""
    partition: str
    bytes: int
    rows: int


class FileChange(Struct, frozen=True, kw_only=True):
    """The changes of a commit."""

    added: Sequence[ArchivedFile] = ()
    removed: Sequence[TableFile] = ()
    covered: Covered
    keeps_rows: bool = False
    """Whether the added files hold exactly the rows of the removed files."""


class TableSink(Protocol):
    """A table in a folder, created on first use."""

    def prepare(self, columns: pa.Schema) -> pa.Schema:
        """Add missing columns to the table; return all columns of the table."""
        ...

    def covered(self, logs: Sequence[str]) -> Covered:
        """Return what the newest version of the table holds of logs."""
        ...

    def files(self) -> list[TableFile]:
        """Return the files of the newest version that may be rewritten."""
        ...

    def commit(self, change: FileChange) -> None:
        """Apply a change atomically and durably; raise `Conflict` if another writer was faster."""
        ...

    def version(self) -> int:
        """Return the newest version: Delta's number, Iceberg's snapshot, or -1."""
        ...

    def expire(self, before_ms: int) -> int:
        """Forget versions older than a time, and remove their files; return the number of files."""
        ...


def open_sink(
    folder: Folder, kind: str, columns: pa.Schema, by: PartitionBy, expire_ms: int
) -> TableSink:
    """Open the table in a folder, or make it."""
    check_table(kind)
    if folder.exists("_manifest"):
        raise InvalidInput(
            f"{folder.text} is an archive; a continuous table needs a folder of its own"
        )
    if kind == "delta":
        from millstream.spark.tables.delta_sink import DeltaSink

        return DeltaSink(folder, columns, by, expire_ms)
    from millstream.spark.tables.iceberg_sink import IcebergSink

    return IcebergSink(folder, columns, by)


def new_name() -> str:
    """Return a name for a new file: it begins with the time, so that a listing shows files by age."""
    return f"{SystemClock().wall_ms():013}-{secrets.token_hex(8)}.parquet"
