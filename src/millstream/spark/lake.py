"""Archives as tables: Iceberg or Delta over the same Parquet files; nothing is copied.

    PATH/_delta_log/                  a Delta table at PATH, partitioned by log and date
    PATH/_iceberg/                    an Iceberg table, and a catalog of it in a SQLite file

What the manifest has and a table lacks is added in one commit. So a run that is repeated adds
nothing, and one that was cut is completed by the next. Each commit says up to which offset of each
log it goes, and by that a table is found as it was (`version_at`).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from millstream.errors import CannotOpen, InvalidInput, NotFound
from millstream.spark.archive import Archive, ArchivedFile, Segment
from millstream.spark.failures import point
from millstream.spark.layout import arrow_schema
from millstream.spark.positions import Position, packed, unpacked

KINDS = ("iceberg", "delta")
OFFSETS = "millstream.offsets"
"""The property of a commit that says where the archive ends, for the logs that it added to."""

NAMESPACE, TABLE = "millstream", "archive"
CATALOG = "_iceberg"
_PARTITIONS = ["log", "date"]


class Registered(Struct, frozen=True, kw_only=True):
    """What was added to a table."""

    kind: str
    path: str
    files: int
    records: int
    version: int
    """The table's version: Delta's number, Iceberg's snapshot; -1 if it has none yet."""


def check_table(kind: str) -> None:
    """Refuse a kind of table that there is not, or that cannot be written here."""
    if kind not in KINDS:
        raise InvalidInput(f"a table is one of {', '.join(KINDS)}, not {kind!r}")
    package = {"iceberg": "pyiceberg", "delta": "deltalake"}[kind]
    try:
        import_module(package)
    except ImportError as error:
        raise CannotOpen(
            f"a table of the kind {kind} needs {package}: pip install 'millstream[lake]'"
        ) from error


def register(archive: Archive, kind: str) -> Registered:
    """Add to a table what it lacks of an archive, in one commit; makes the table if need be."""
    check_table(kind)
    table = _DeltaArchive(archive) if kind == "delta" else _IcebergArchive(archive)
    known = table.files()
    added: list[tuple[Segment, ArchivedFile]] = []
    ends: Position = {}
    for segment in _segments(archive):
        new = [(segment, one) for one in segment.files if str(archive.path / one.path) not in known]
        added += new
        if new:
            ends[segment.log] = max(ends.get(segment.log, 0), segment.stop)
    point("table planned")
    if added:
        table.add(added, ends)
    point("table committed")
    return Registered(
        kind=kind,
        path=str(archive.path),
        files=len(added),
        records=sum(file.rows for _, file in added),
        version=table.version(),
    )


def version_at(archive: Archive, kind: str, log: str, offset: int) -> int:
    """The newest version of a table that holds nothing of a log from an offset on.

    Delta's number of a version, or Iceberg's id of a snapshot.
    """
    check_table(kind)
    table = _DeltaArchive(archive) if kind == "delta" else _IcebergArchive(archive)
    found: int | None = None
    for version, ends in table.history():
        if ends.get(log, 0) > offset:
            break
        found = version
    if found is None:
        raise NotFound(f"no version of the table ends before offset {offset} of log {log!r}")
    return found


def delta_table(path: str | Path) -> Any:
    """The Delta table of an archive, as `deltalake` has it."""
    from deltalake import DeltaTable

    return DeltaTable(Archive(path).path)


def iceberg_table(path: str | Path) -> Any:
    """The Iceberg table of an archive, as `pyiceberg` has it."""
    return _catalog(Archive(path).path).load_table((NAMESPACE, TABLE))


def _segments(archive: Archive) -> Iterator[Segment]:
    for log in archive.logs():
        yield from archive.segments(log)


def archive_schema() -> pa.Schema:
    """The columns of archived files."""
    from pyspark.sql.types import StructType

    from millstream.spark.layout import log_schema

    return arrow_schema(StructType([one for one in log_schema("typed") if one.name != "partition"]))


class _DeltaArchive:
    """The Delta table at an archive's path."""

    def __init__(self, archive: Archive) -> None:
        from deltalake import DeltaTable, Schema

        partitions = [pa.field("log", pa.string()), pa.field("date", pa.date32())]
        self._archive = archive
        self._schema = Schema.from_arrow(pa.schema([*archive_schema(), *partitions]))
        self._table = DeltaTable.create(
            archive.path, self._schema, mode="ignore", partition_by=_PARTITIONS, name=TABLE
        )

    def files(self) -> set[str]:
        return set(self._table.file_uris())

    def version(self) -> int:
        return int(self._table.version())

    def add(self, added: list[tuple[Segment, ArchivedFile]], ends: Position) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.bytes,
                partition_values={"log": segment.log, "date": file.date},
                modification_time=segment.written,
                data_change=True,
                stats=_stats(file),
            )
            for segment, file in added
        ]
        noted = CommitProperties(
            custom_metadata={OFFSETS: _text(ends)},
            app_transactions=[Transaction(f"millstream:{log}", end) for log, end in ends.items()],
        )
        self._table.create_write_transaction(
            actions, "append", self._schema, _PARTITIONS, commit_properties=noted
        )
        self._table.update_incremental()

    def history(self) -> Iterator[tuple[int, Position]]:
        ends: Position = {}
        for one in reversed(self._table.history()):
            ends |= _position(one.get(OFFSETS))
            yield int(one["version"]), ends


def _stats(file: ArchivedFile) -> str:
    low, high = {"offset": file.start}, {"offset": file.stop - 1}
    stats = {"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": {}}
    return msgspec.json.encode(stats).decode()


class _IcebergArchive:
    """The Iceberg table over an archive's files."""

    def __init__(self, archive: Archive) -> None:
        catalog = _catalog(archive.path)
        catalog.create_namespace_if_not_exists(NAMESPACE)
        self._table = catalog.create_table_if_not_exists(
            (NAMESPACE, TABLE), schema=archive_schema()
        )
        self._archive = archive
        if not self._table.spec().fields:
            from pyiceberg.transforms import DayTransform, IdentityTransform

            with self._table.update_spec() as spec:
                spec.add_field("topic", IdentityTransform(), "log")
                spec.add_field("appendTimestamp", DayTransform(), "date")

    def files(self) -> set[str]:
        return set(self._table.inspect.files()["file_path"].to_pylist())

    def version(self) -> int:
        found = self._table.current_snapshot()
        return -1 if found is None else int(found.snapshot_id)

    def add(self, added: list[tuple[Segment, ArchivedFile]], ends: Position) -> None:
        paths = [str(self._archive.path / file.path) for _, file in added]
        noted = {OFFSETS: _text(ends)}
        self._table.add_files(paths, snapshot_properties=noted, check_duplicate_files=False)

    def history(self) -> Iterator[tuple[int, Position]]:
        ends: Position = {}
        for one in self._table.snapshots():
            noted = one.summary.additional_properties if one.summary else {}
            ends |= _position(noted.get(OFFSETS))
            yield int(one.snapshot_id), ends


def _catalog(path: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    folder = path / CATALOG
    folder.mkdir(parents=True, exist_ok=True)
    where = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    return SqlCatalog(NAMESPACE, **where)


def _text(ends: Position) -> str:
    return msgspec.json.encode(packed(ends)).decode()


def _position(text: str | None) -> Position:
    return unpacked(msgspec.json.decode(text)) if text else {}
