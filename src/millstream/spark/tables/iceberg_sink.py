"""An Iceberg table that follows logs, by `pyiceberg`.

The end and the id of each log lie in the property `millstream.offsets` of the table, and of each
snapshot's summary; one commit changes both together with the files. Without a configured catalog the
table lies in its folder alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow

from millstream.errors import Conflict
from millstream.spark.archive.archive import ArchivedFile
from millstream.spark.archive.folders import Folder
from millstream.spark.archive.iceberg import made_table, partition_field, prepared
from millstream.spark.archive.lake_columns import text_of
from millstream.spark.archive.partitioning import PartitionBy, iceberg_text
from millstream.spark.archive.table import OFFSETS
from millstream.spark.archive.typed_columns import union
from millstream.spark.source.positions import ids_in, unpacked
from millstream.spark.tables.sink import Covered, FileChange, TableFile

METADATA_MAX = 100
"""Versions of the metadata that stay in a folder without a catalog."""

HOUR_MS = 3_600_000
"""A file without a snapshot is left over by a kill if it is older than this, beside the time to expire."""

_NAMES = "schema.name-mapping.default"
_SETTINGS = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": str(METADATA_MAX),
}


class IcebergSink:
    """The table, and how it is changed."""

    def __init__(self, folder: Folder, columns: pa.Schema, by: PartitionBy) -> None:
        self._folder, self._by = folder, by
        self._table = made_table(folder, "", columns)
        self._fields = dict([partition_field(by)])
        self.prepare(columns)

    def prepare(self, columns: pa.Schema) -> pa.Schema:
        """Add missing columns to the table; return all columns of the table."""
        self._table.refresh()
        prepared(self._table, columns, self._fields)
        if _NAMES not in self._table.properties:
            # Our files have no ids of columns: readers find columns by their names.
            names = self._table.schema().name_mapping.model_dump_json()
            with self._table.transaction() as change:
                change.set_properties({_NAMES: names, **_SETTINGS})
        return union([schema_to_pyarrow(self._table.schema(), include_field_ids=False)])

    def covered(self, logs: Sequence[str]) -> Covered:
        """Return what the newest version holds of logs."""
        self._table.refresh()
        noted = self._noted()
        return Covered(
            {log: noted.ends[log] for log in logs if log in noted.ends},
            {log: noted.ids[log] for log in logs if log in noted.ids},
        )

    def _noted(self) -> Covered:
        noted = msgspec.json.decode(self._table.properties.get(OFFSETS, "{}"))
        return Covered(unpacked(noted), ids_in(noted))

    def files(self) -> list[TableFile]:
        """Return the files of the newest version without delete files of other writers."""
        return [
            TableFile(
                path=self._inside(task.file.file_path),
                partition=iceberg_text(task.file.partition[0], by_day=self._by.by_day),
                bytes=task.file.file_size_in_bytes,
                rows=task.file.record_count,
            )
            for task in self._table.scan().plan_files()
            if not task.delete_files
        ]

    def _inside(self, uri: str) -> str:
        return uri.removeprefix("file://").removeprefix(self._folder.uri("").rstrip("/") + "/")

    def commit(self, change: FileChange) -> None:
        """Apply a change atomically."""
        noted = self._noted()  # also logs that this run does not follow, and deleted logs
        ends = {**noted.ends, **change.covered.ends}
        text = text_of(ends, {**noted.ids, **change.covered.ids})
        gone = {self._folder.uri(file.path) for file in change.removed}
        data_files = {}
        if gone:
            planned = [task.file for task in self._table.scan().plan_files()]
            data_files = {self._folder.uri(self._inside(file.file_path)): file for file in planned}
        self._retry_nothing()
        try:
            with self._table.transaction() as transaction:
                if change.added or gone:
                    update = transaction.update_snapshot(snapshot_properties={OFFSETS: text})
                    with update.overwrite() if gone else update.fast_append() as snapshot:
                        for uri in sorted(gone):
                            snapshot.delete_data_file(data_files[uri])
                        for file in change.added:
                            snapshot.append_data_file(self._data_file(transaction, file))
                transaction.set_properties({OFFSETS: text})
        except CommitFailedException as error:
            self._table.refresh()
            raise Conflict(
                f"another writer changed the table {self._folder.text} at the same time: {error}; "
                "run it again"
            ) from error

    def _retry_nothing(self) -> None:
        """Let pyiceberg raise after a conflict: its retry would append records a second time.

        The setting stays in memory; it is a property of the table only for pyiceberg.
        """
        metadata = self._table.metadata
        properties = {**metadata.properties, "commit.retry.num-retries": "0"}
        self._table.metadata = metadata.model_copy(update={"properties": properties})

    def _data_file(self, transaction: Any, file: ArchivedFile) -> Any:
        uri = self._folder.uri(file.path)
        return parquet_file_to_data_file(self._table.io, transaction.table_metadata, uri)

    def version(self) -> int:
        """Return the newest snapshot, or -1."""
        snapshot = self._table.current_snapshot()
        return -1 if snapshot is None else int(snapshot.snapshot_id)

    def expire(self, before_ms: int) -> int:
        """Forget snapshots older than a time; remove files without a snapshot."""
        self._table.refresh()
        current = self._table.current_snapshot()
        if current is None:
            return 0
        old = [each for each in self._table.snapshots() if each.timestamp_ms < before_ms]
        if any(each != current for each in old):
            self._table.maintenance.expire_snapshots().older_than(
                datetime.fromtimestamp(before_ms / 1000, UTC)
            ).commit()
            self._table.refresh()
        snapshots = sorted(self._table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
        # A removed file never comes back, except by a rollback. So the first young snapshot has all
        # old files of later snapshots.
        young = [each for each in snapshots if each.timestamp_ms >= before_ms][:1]
        tagged = [each for each in snapshots if each.timestamp_ms < before_ms]
        needed = self._named_by([*tagged, *young, current])
        gone = self._named_by([each for each in old if each not in tagged])
        gone |= {
            name for name in self._folder.names("data") if _time_of(name) < before_ms - HOUR_MS
        }
        self._folder.remove(sorted(gone - needed))
        self._folder.remove(self._old_metadata())
        return len(gone - needed)

    def _named_by(self, snapshots: Sequence[Any]) -> set[str]:
        """Return the files of snapshots: manifest lists, manifests and data."""
        names: set[str] = set()
        for snapshot in snapshots:
            names.add(self._inside(snapshot.manifest_list))
            for manifest in snapshot.manifests(self._table.io):
                if (path := self._inside(manifest.manifest_path)) not in names:
                    names.add(path)
                    entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
                    names |= {self._inside(entry.data_file.file_path) for entry in entries}
        return names

    def _old_metadata(self) -> list[str]:
        """Return old versions of the metadata in a folder without a catalog."""
        numbers = {
            int(stem[1:]): name
            for name in self._folder.names("metadata")
            if (stem := name.split("/")[-1].removesuffix(".metadata.json"))[1:].isdigit()
            and stem.startswith("v")
        }
        newest = max(numbers, default=0)
        return [name for number, name in numbers.items() if number <= newest - METADATA_MAX]


def _time_of(name: str) -> float:
    """Return when a file of ours was named, in milliseconds; infinity for files of other writers."""
    digits = name.rpartition("/")[2].partition("-")[0]
    return int(digits) if len(digits) == 13 and digits.isdigit() else float("inf")
