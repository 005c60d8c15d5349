"""The Delta table at an archive's path, by `deltalake`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from millstream.clock import SystemClock
from millstream.errors import InvalidInput
from millstream.spark.archive.archive import Archive, ArchivedFile
from millstream.spark.archive.folders import Folder
from millstream.spark.archive.lake_columns import (
    archive_schema,
    bucket_settings,
    position_of,
    text_of,
)
from millstream.spark.archive.partitioning import NULL
from millstream.spark.archive.table import OFFSETS, Changes, TableLayout
from millstream.spark.archive.typed_columns import union
from millstream.spark.source.positions import Position

_SETTINGS = {
    "endpoint": "AWS_ENDPOINT_URL",
    "allow_http": "AWS_ALLOW_HTTP",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}


def load_delta(archive: Archive, version: int | None = None) -> DeltaTable:
    """The table, as it is or was."""
    settings = bucket_settings(archive.folder, _SETTINGS)
    return DeltaTable(archive.path, version=version, storage_options=settings or None)


def open_delta(
    folder: Folder,
    schema: pa.Schema,
    partitions: list[str],
    name: str,
    settings: Mapping[str, str] | None = None,
) -> DeltaTable:
    """Open a table, or make a missing table; add the missing columns."""
    check_names(schema)
    table = DeltaTable.create(
        folder.text,
        Schema.from_arrow(schema),
        mode="ignore",
        partition_by=partitions,
        name=name,
        configuration=dict(settings or {}),
        storage_options=bucket_settings(folder, _SETTINGS) or None,
    )
    if (present_partitions := table.metadata().partition_columns) != partitions:
        raise InvalidInput(
            f"the table at {folder.text} is partitioned by {', '.join(present_partitions) or 'nothing'}, not by "
            f"{', '.join(partitions)}; choose another path"
        )
    present = union([pa.schema(table.schema().to_arrow())])
    target = union([present, schema])
    if changed := [field for field in target if field not in present]:
        table.alter.add_columns(list(Schema.from_arrow(pa.schema(changed)).fields))
        table.update_incremental()
    return table


def check_names(fields: Iterable[pa.Field], path: str = "") -> None:
    """Refuse names that Delta takes for the same name: they differ in upper and lower case alone."""
    names: dict[str, str] = {}
    for field in fields:
        other = names.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise InvalidInput(
                f"a Delta table has no two columns whose names differ in upper and lower case alone: "
                f"{path}{other!r} and {path}{field.name!r}; write to an Iceberg table, or rename a field"
            )
        inner = [field.type.field(at) for at in range(field.type.num_fields)]
        check_names(inner, f"{path}{field.name}.")


class DeltaArchive:
    """The table, and how it is changed."""

    def __init__(self, archive: Archive, layout: TableLayout | None = None) -> None:
        self._archive = archive
        folder = archive.folder
        if layout is None and folder.exists("_delta_log"):
            self._table = load_delta(archive)
        else:
            layout = layout or TableLayout()
            columns = union([archive_schema(), layout.fields])
            partition_fields = [pa.field("log", pa.string())]
            partition_fields += [pa.field("date", pa.date32())] if layout.by.by_day else []
            partitions = ["log", layout.by.table_column]
            schema = pa.schema([*columns, *partition_fields])
            self._table = open_delta(folder, schema, partitions, "archive")
        self._partitions = list(self._table.metadata().partition_columns)

    def files(self) -> set[str]:
        """Return the addresses of the table's files, as other libraries open them."""
        return self._uris(self._table)

    def _uris(self, table: DeltaTable) -> set[str]:
        """Delta writes names with more of `%XX` in them than we do."""
        paths = pa.table(table.get_add_actions()).column("path").to_pylist()
        return {self._archive.folder.uri(unquote(path)) for path in paths}

    def version(self) -> int:
        """Its newest version."""
        return int(self._table.version())

    def commit(self, changes: Changes) -> None:
        """Apply the changes atomically."""
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.bytes,
                partition_values=dict(
                    zip(self._partitions, (segment.log, value_of(file)), strict=True)
                ),
                modification_time=segment.written,
                data_change=True,
                stats=stats_of(file),
            )
            for segment, file in changes.added
        ]
        now_ms = SystemClock().wall_ms()
        start = len(self._archive.path) + 1
        for uri in sorted(changes.removed):
            actions.append(RemoveAction(uri[start:], data_change=True, deletion_timestamp=now_ms))
        noted = CommitProperties(
            custom_metadata={OFFSETS: text_of(changes.ends)},
            app_transactions=[
                Transaction(f"millstream:{log}", changes.ends[log]) for log in sorted(changes.grown)
            ],
        )
        self._table.create_write_transaction(
            actions, "append", self._table.schema(), self._partitions, commit_properties=noted
        )
        self._table.update_incremental()

    def history(self) -> Iterator[tuple[int, Position]]:
        """Yield the versions, oldest first, each with the end of its logs."""
        for version in reversed(self._table.history()):
            yield int(version["version"]), position_of(version.get(OFFSETS))

    def files_of(self, version: int) -> set[str]:
        """The files of a version."""
        return self._uris(load_delta(self._archive, version))

    def expire(self, before_ms: int) -> None:
        """Delta lets go of old versions by itself, after its partition_fields time."""


def value_of(file: ArchivedFile) -> str | None:
    """Return the value of a file's partition; Delta has None for null."""
    return None if file.partition == NULL else file.partition


def stats_of(file: ArchivedFile) -> str:
    """Return the statistics by which readers skip files."""
    low, high = {"offset": file.start}, {"offset": file.stop - 1}
    stats = {"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": {}}
    return msgspec.json.encode(stats).decode()
