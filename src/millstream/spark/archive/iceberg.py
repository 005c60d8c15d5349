"""The Iceberg table over an archive's files, by `pyiceberg`.

It lies in `PATH/_iceberg`. If a catalog named `millstream` is configured for pyiceberg
(`PYICEBERG_CATALOG__MILLSTREAM__URI` and such), the table is made there instead, in the namespace
`millstream`, under the last part of the archive's path.
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
"""The property of a table that says which archive it is of."""

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
        """What other libraries open its files by."""
        return set(self._table.inspect.files()["file_path"].to_pylist())

    def version(self) -> int:
        """Its newest snapshot, or -1."""
        found = self._table.current_snapshot()
        return -1 if found is None else int(found.snapshot_id)

    def commit(self, changes: Changes) -> None:
        """Make changes, all of them or none."""
        paths = [self._archive.folder.uri(file.path) for _, file in changes.added]
        noted = {OFFSETS: text_of(changes.ends)}
        if not changes.removed:
            self._table.add_files(paths, snapshot_properties=noted, check_duplicate_files=False)
            return
        known = {task.file.file_path: task.file for task in self._table.scan().plan_files()}
        with (
            self._table.transaction() as change,
            change.update_snapshot(snapshot_properties=noted).overwrite() as files,
        ):
            for path in sorted(changes.removed):
                files.delete_data_file(known[path])
            for path in paths:
                files.append_data_file(
                    parquet_file_to_data_file(self._table.io, change.table_metadata, path)
                )

    def history(self) -> Iterator[tuple[int, Position]]:
        """Its snapshots, oldest first, and where each ends."""
        for one in self._table.snapshots():
            noted = one.summary.additional_properties if one.summary else {}
            yield int(one.snapshot_id), position_of(noted.get(OFFSETS))

    def files_of(self, version: int) -> set[str]:
        """The files of a snapshot."""
        return set(self._table.inspect.files(version)["file_path"].to_pylist())

    def expire(self, before_ms: int) -> None:
        """Forget snapshots that are older than a time, but for the newest."""
        before = datetime.fromtimestamp(before_ms / 1000, UTC)
        if any(one.timestamp_ms < before_ms for one in self._table.snapshots()):
            self._table.maintenance.expire_snapshots().older_than(before).commit()
