"""The Iceberg table over an archive's files, by `pyiceberg`.

The table lies in `PATH/_iceberg`. If pyiceberg has a catalog named `millstream`
(`PYICEBERG_CATALOG__MILLSTREAM__URI` and others), the table is created in the namespace
`millstream` of the catalog, under the last component of the archive's path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.utils.config import Config

from millstream.errors import Conflict
from millstream.spark.archive.archive import Archive
from millstream.spark.archive.iceberg_folder import FolderCatalog
from millstream.spark.archive.lake_columns import (
    archive_schema,
    bucket_settings,
    position_of,
    text_of,
)
from millstream.spark.archive.table import OFFSETS, Changes
from millstream.spark.source.positions import Position

NAMESPACE = "millstream"
BELOW = "_iceberg"
ARCHIVE = "millstream.archive"
"""The property of a table that names its archive."""

_SETTINGS = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}


def load_iceberg(archive: Archive) -> Any:
    """The table, as it is."""
    return _catalog(archive).load_table(_name(archive))


def _name(archive: Archive) -> tuple[str, str]:
    return NAMESPACE, re.sub(r"\W+", "_", archive.path.rstrip("/").rpartition("/")[2]) or "archive"


def _catalog(archive: Archive) -> Catalog:
    settings = bucket_settings(archive.folder, _SETTINGS)
    if configured := Config().get_catalog_config(NAMESPACE):
        return load_catalog(
            NAMESPACE, **{str(k): str(v) for k, v in configured.items()}, **settings
        )
    return FolderCatalog(archive.folder, BELOW, _name(archive), **settings)


class IcebergArchive:
    """The table, and how it is changed."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._table = self._made(_catalog(archive))
        if not self._table.spec().fields:
            with self._table.update_spec() as spec:
                spec.add_field("topic", IdentityTransform(), "log")
                spec.add_field("appendTimestamp", DayTransform(), "date")

    def _made(self, catalog: Catalog) -> Any:
        if isinstance(catalog, FolderCatalog):
            return catalog.create(archive_schema())
        catalog.create_namespace_if_not_exists(NAMESPACE)
        table = catalog.create_table_if_not_exists(
            _name(self._archive),
            schema=archive_schema(),
            location=self._archive.folder.uri(BELOW),
            properties={ARCHIVE: self._archive.path},
        )
        if (of := table.properties.get(ARCHIVE)) != self._archive.path:
            raise Conflict(
                f"the table {'.'.join(_name(self._archive))} of the catalog is of {of}, not of "
                f"{self._archive.path}; rename one of the archives"
            )
        return table

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
