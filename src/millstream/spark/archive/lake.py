"""Archives as tables: Iceberg or Delta over the same Parquet files; nothing is copied.

    PATH/_delta_log/                  a Delta table at PATH, partitioned by log and date
    PATH/_iceberg/                    an Iceberg table, unless a catalog is configured for it

`register` adds the files of the manifest that a table lacks, in one commit, and removes merged files in
the same commit. So a repeated run adds nothing, and the next run completes an interrupted one. A commit
notes the end of each log. By these notes `version_at` finds an older version of a table.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from msgspec import Struct

from millstream.errors import CannotOpen, InvalidInput, NotFound
from millstream.spark.archive.archive import Archive, ArchivedFile, Segment
from millstream.spark.archive.table import ArchiveTable, Changes, TableLayout
from millstream.spark.failures import point
from millstream.spark.source.positions import Position

KINDS = ("iceberg", "delta")

_PACKAGES = {"iceberg": "pyiceberg", "delta": "deltalake"}
_FOLDERS = {"iceberg": "_iceberg", "delta": "_delta_log"}


class Registered(Struct, frozen=True, kw_only=True):
    """What was added to a table."""

    kind: str
    path: str
    files: int
    records: int
    version: int
    """The version of the table: Delta's number, Iceberg's snapshot, or -1 without a version."""
    removed: int = 0
    """The number of files that were merged into larger files."""


def check_table(kind: str) -> None:
    """Refuse a kind of table that there is not, or that cannot be written here."""
    if kind not in KINDS:
        raise InvalidInput(f"a table is one of {', '.join(KINDS)}, not {kind!r}")
    try:
        import_module(_PACKAGES[kind])
    except ImportError as error:
        raise CannotOpen(
            f"a table of the kind {kind} needs {_PACKAGES[kind]}: pip install 'millstream[lake]'"
        ) from error


def tables_of(archive: Archive) -> list[str]:
    """The kinds of table that an archive is already."""
    return [kind for kind, below in _FOLDERS.items() if archive.folder.exists(below)]


def open_table(archive: Archive, kind: str, layout: TableLayout | None = None) -> ArchiveTable:
    """Open the table of an archive; make it if it is missing, and add columns that it lacks."""
    check_table(kind)
    if kind == "delta":
        from millstream.spark.archive.delta import DeltaArchive

        return DeltaArchive(archive, layout)
    from millstream.spark.archive.iceberg import IcebergArchive

    return IcebergArchive(archive, layout)


def register(archive: Archive, kind: str, layout: TableLayout | None = None) -> Registered:
    """Bring a table to where the manifest of an archive is, in one commit; makes it if need be."""
    table = open_table(archive, kind, layout)
    changes = _changes(archive, table.files())
    point("table planned")
    if changes.added or changes.removed:
        table.commit(changes)
    point("table committed")
    return Registered(
        kind=kind,
        path=archive.path,
        files=len(changes.added),
        records=sum(file.rows for _, file in changes.added),
        version=table.version(),
        removed=len(changes.removed),
    )


def _changes(archive: Archive, registered: set[str]) -> Changes:
    added: list[tuple[Segment, ArchivedFile]] = []
    expected: set[str] = set()
    ends: Position = {}
    for log, segments in archive.segments_of(archive.logs()).items():
        ends[log] = segments[-1].stop
        for segment in segments:
            files = {archive.folder.uri(file.path): file for file in segment.files}
            expected |= files.keys()
            added += [(segment, file) for uri, file in files.items() if uri not in registered]
    grown = {segment.log for segment, _ in added}
    return Changes(added=added, removed=registered - expected, ends=ends, grown=grown)


def version_at(archive: Archive, kind: str, log: str, offset: int) -> int:
    """The newest version of a table that holds nothing of a log from an offset on.

    Delta's number of a version, or Iceberg's id of a snapshot.
    """
    table = open_table(archive, kind)
    newest: int | None = None
    for version, ends in table.history():
        if ends.get(log, 0) > offset:
            break
        newest = version
    if newest is None:
        raise NotFound(f"no version of the table ends before offset {offset} of log {log!r}")
    offsets = {
        archive.folder.uri(path)
        for segments in archive.segments_of(archive.logs()).values()
        for segment in segments
        for path in segment.paths()
    }
    if not table.files_of(newest) <= offsets:
        raise NotFound(
            f"version {newest} of the table has expired; read its newest version where "
            f"`offset < {offset}`"
        )
    return newest


def expire_versions(archive: Archive, before_ms: int) -> None:
    """Let every table of an archive forget versions whose files may be removed."""
    for kind in tables_of(archive):
        open_table(archive, kind).expire(before_ms)


def delta_table(path: str | os.PathLike[str]) -> Any:
    """The Delta table of an archive, as `deltalake` has it."""
    from millstream.spark.archive.delta import load_delta

    return load_delta(Archive(path))


def iceberg_table(path: str | os.PathLike[str]) -> Any:
    """The Iceberg table of an archive, as `pyiceberg` has it."""
    from millstream.spark.archive.iceberg import load_iceberg

    return load_iceberg(Archive(path))
