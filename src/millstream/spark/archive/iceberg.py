"""The Iceberg table over an archive's files, by `pyiceberg`.

The table lies in `PATH/_iceberg`. If pyiceberg has a catalog named `millstream`
(`PYICEBERG_CATALOG__MILLSTREAM__URI` and others), the table is created in the namespace
`millstream` of the catalog, under the last component of the archive's path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.utils.config import Config

from millstream.errors import Conflict, InvalidInput
from millstream.spark.archive.archive import Archive
from millstream.spark.archive.folders import Folder
from millstream.spark.archive.iceberg_folder import FolderCatalog
from millstream.spark.archive.lake_columns import (
    archive_schema,
    bucket_settings,
    position_of,
    text_of,
)
from millstream.spark.archive.partitioning import PartitionBy
from millstream.spark.archive.table import OFFSETS, Changes, TableLayout
from millstream.spark.archive.typed_columns import union
from millstream.spark.source.positions import Position

NAMESPACE = "millstream"
BELOW = "_iceberg"
ARCHIVE = "millstream.archive"
"""The property of a table that names its folder."""

_SETTINGS = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}


def load_iceberg(archive: Archive) -> Any:
    """The table, as it is."""
    return catalog_of(archive.folder, BELOW).load_table(name_of(archive.folder))


def name_of(folder: Folder) -> tuple[str, str]:
    """Return the namespace and the name of a folder's table in a catalog."""
    return NAMESPACE, re.sub(r"\W+", "_", folder.text.rstrip("/").rpartition("/")[2]) or "archive"


def catalog_of(folder: Folder, below: str) -> Catalog:
    """Return the configured catalog, or the catalog of the one table in a folder."""
    settings = bucket_settings(folder, _SETTINGS)
    if configured := Config().get_catalog_config(NAMESPACE):
        return load_catalog(
            NAMESPACE, **{str(k): str(v) for k, v in configured.items()}, **settings
        )
    return FolderCatalog(folder, below, name_of(folder), **settings)


def made_table(folder: Folder, below: str, schema: pa.Schema) -> Any:
    """Return the table of a folder; make it if it is missing."""
    catalog, name = catalog_of(folder, below), name_of(folder)
    if isinstance(catalog, FolderCatalog):
        return catalog.create(schema)
    catalog.create_namespace_if_not_exists(name[0])
    table = catalog.create_table_if_not_exists(
        name,
        schema=schema,
        location=folder.uri(below).rstrip("/"),
        properties={ARCHIVE: folder.text},
    )
    if (of := table.properties.get(ARCHIVE)) != folder.text:
        raise Conflict(
            f"the table {'.'.join(name)} of the catalog is of {of}, not of {folder.text}; rename "
            "one of the folders"
        )
    return table


def prepared(table: Any, schema: pa.Schema, partitions: Mapping[str, tuple[str, Any]]) -> Any:
    """Return a table with the columns that it lacks, and with the partitions if it is new.

    `partitions` has a column and a transform for the name of each partition field.
    """
    present = union([schema_to_pyarrow(table.schema(), include_field_ids=False)])
    target = union([present, schema])
    if target != present:
        with table.update_schema() as change:
            change.union_by_name(target)
    named = {name: (column, str(transform)) for name, (column, transform) in partitions.items()}
    if not table.spec().fields and table.current_snapshot() is None and partitions:
        with table.update_spec() as spec:
            for name, (column, transform) in partitions.items():
                spec.add_field(column, transform, name)
    columns = {field.field_id: field.name for field in table.schema().fields}
    fields = {
        field.name: (columns.get(field.source_id, ""), str(field.transform))
        for field in table.spec().fields
    }
    if fields != named:
        raise InvalidInput(
            f"the table at {table.location()} is partitioned by {_words(fields)}, not by "
            f"{_words(named)}; choose another path"
        )
    return table


def _words(partitions: Mapping[str, tuple[str, str]]) -> str:
    return (
        ", ".join(f"{transform}({column})" for column, transform in partitions.values())
        or "nothing"
    )


def partition_field(by: PartitionBy) -> tuple[str, tuple[str, Any]]:
    """Return the name, the column and the transform of a partition field."""
    transform: Any = DayTransform() if by.by_day else IdentityTransform()
    return (by.label, (by.column, transform))


class IcebergArchive:
    """The table, and how it is changed."""

    def __init__(self, archive: Archive, layout: TableLayout | None = None) -> None:
        self._archive = archive
        table = made_table(archive.folder, BELOW, archive_schema())
        if layout is None and table.spec().fields:
            self._table = table
            return
        layout = layout or TableLayout()
        name, source = partition_field(layout.by)
        partitions = {"log": ("topic", IdentityTransform()), name: source}
        self._table = prepared(table, union([archive_schema(), layout.fields]), partitions)

    def files(self) -> set[str]:
        """Return the addresses of the table's files, as other libraries open them."""
        return set(self._table.inspect.files()["file_path"].to_pylist())

    def version(self) -> int:
        """Return the newest snapshot, or -1."""
        snapshot = self._table.current_snapshot()
        return -1 if snapshot is None else int(snapshot.snapshot_id)

    def commit(self, changes: Changes) -> None:
        """Apply the changes atomically."""
        paths = [self._archive.folder.uri(file.path) for _, file in changes.added]
        noted = {OFFSETS: text_of(changes.ends)}
        if not changes.removed:
            self._table.add_files(paths, snapshot_properties=noted, check_duplicate_files=False)
            return
        by_path = {task.file.file_path: task.file for task in self._table.scan().plan_files()}
        with (
            self._table.transaction() as change,
            change.update_snapshot(snapshot_properties=noted).overwrite() as files,
        ):
            for path in sorted(changes.removed):
                files.delete_data_file(by_path[path])
            for path in paths:
                files.append_data_file(
                    parquet_file_to_data_file(self._table.io, change.table_metadata, path)
                )

    def history(self) -> Iterator[tuple[int, Position]]:
        """Yield the snapshots, oldest first, each with the end of its logs."""
        for snapshot in self._table.snapshots():
            noted = snapshot.summary.additional_properties if snapshot.summary else {}
            yield int(snapshot.snapshot_id), position_of(noted.get(OFFSETS))

    def files_of(self, version: int) -> set[str]:
        """The files of a snapshot."""
        return set(self._table.inspect.files(version)["file_path"].to_pylist())

    def expire(self, before_ms: int) -> None:
        """Forget snapshots that are older than a time, but for the newest."""
        before = datetime.fromtimestamp(before_ms / 1000, UTC)
        if any(snapshot.timestamp_ms < before_ms for snapshot in self._table.snapshots()):
            self._table.maintenance.expire_snapshots().older_than(before).commit()
