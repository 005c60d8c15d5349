"""The Delta table at an archive's path, by `deltalake`."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from millstream.clock import SystemClock
from millstream.spark.archive.archive import Archive, ArchivedFile
from millstream.spark.archive.lake_columns import (
    archive_schema,
    bucket_settings,
    position_of,
    text_of,
)
from millstream.spark.archive.table import OFFSETS, Changes
from millstream.spark.source.positions import Position

_PARTITIONS = ["log", "date"]
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


class DeltaArchive:
    """The table, and how it is changed."""

    def __init__(self, archive: Archive) -> None:
        partitions = [pa.field("log", pa.string()), pa.field("date", pa.date32())]
        self._archive = archive
        self._schema = Schema.from_arrow(pa.schema([*archive_schema(), *partitions]))
        self._table = DeltaTable.create(
            archive.path,
            self._schema,
            mode="ignore",
            partition_by=_PARTITIONS,
            name="archive",
            storage_options=bucket_settings(archive.folder, _SETTINGS) or None,
        )

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
                partition_values={"log": segment.log, "date": file.date},
                modification_time=segment.written,
                data_change=True,
                stats=_stats(file),
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
            actions, "append", self._schema, _PARTITIONS, commit_properties=noted
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
        """Delta lets go of old versions by itself, after its own time."""


def _stats(file: ArchivedFile) -> str:
    low, high = {"offset": file.start}, {"offset": file.stop - 1}
    stats = {"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": {}}
    return msgspec.json.encode(stats).decode()
