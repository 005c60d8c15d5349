"""An Iceberg table in a folder of its own, without a catalog elsewhere.

    FOLDER/metadata/vN.metadata.json      the table after N commits
    FOLDER/metadata/version-hint.text     N, for readers that list no folders

Commit N writes `vN`, and only if it is not there yet: so the second of two simultaneous commits fails. That is
the layout of Iceberg's tables in a file system (`HadoopTables`), which other readers open by its path.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata

from millstream.errors import Conflict
from millstream.spark.archive.folders import Folder

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = re.compile(r"(?:.*/)?metadata/v(\d+)\.metadata\.json")


class FolderCatalog(NoopCatalog):
    """The catalog of the one table in a folder."""

    def __init__(
        self, folder: Folder, below: str, name: tuple[str, str], **properties: str
    ) -> None:
        super().__init__(name[0], **properties)
        self._folder, self._below, self._name = folder, below, name
        self._metadata = f"{below}/metadata" if below else "metadata"

    def load_table(self, identifier: Any = None) -> Table:
        """The table as it is now."""
        matches = map(_VERSION.fullmatch, self._folder.names(self._metadata))
        newest = max((int(match[1]) for match in matches if match), default=0)
        if not newest:
            raise NoSuchTableError(f"there is no Iceberg table in {self._folder.text}")
        location = self._location(newest)
        metadata = FromInputFile.table_metadata(self._io(location).new_input(location))
        return self._table(metadata, location)

    def create(self, schema: pa.Schema) -> Table:
        """Load the table, or create it."""
        try:
            return self.load_table()
        except NoSuchTableError:
            made = new_table_metadata(
                location=self._folder.uri(self._below).rstrip("/"),
                schema=self._convert_schema_if_needed(schema),
                partition_spec=UNPARTITIONED_PARTITION_SPEC,
                sort_order=UNSORTED_SORT_ORDER,
            )
            return self._table(made, self._store(1, made))

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        """Write the next version; `CommitFailedException` if another commit was faster."""
        current = self.load_table()
        for requirement in requirements:
            requirement.validate(current.metadata)
        location = current.metadata_location
        updated = update_table_metadata(
            current.metadata, updates, enforce_validation=False, metadata_location=location
        )
        if updated != current.metadata:
            match = _VERSION.fullmatch(location)
            assert match is not None
            location = self._store(int(match[1]) + 1, updated)
        return CommitTableResponse(metadata=updated, metadata_location=location)  # type: ignore[call-arg]

    def _store(self, number: int, metadata: TableMetadata) -> str:
        name = f"{self._metadata}/v{number}.metadata.json"
        data = metadata.model_dump_json(exclude_none=True).encode()
        try:
            self._folder.create({name: data})
        except Conflict as error:
            raise CommitFailedException(error.message) from error
        self._folder.write({f"{self._metadata}/version-hint.text": b"%d" % number})
        return self._location(number)

    def _location(self, number: int) -> str:
        return self._folder.uri(f"{self._metadata}/v{number}.metadata.json")

    def _io(self, location: str) -> Any:
        return load_file_io(properties=self.properties, location=location)

    def _table(self, metadata: TableMetadata, location: str) -> Table:
        return Table(
            identifier=self._name,
            metadata=metadata,
            metadata_location=location,
            io=self._io(location),
            catalog=self,
        )
