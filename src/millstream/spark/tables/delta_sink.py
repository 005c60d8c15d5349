"""A Delta table that follows logs, by `deltalake`.

Each commit has two application transactions per log: `millstream:LOG` holds the end of the log, and
`millstream-id:LOG` its id. Delta keeps them in every version, and refuses two commits at once that
change the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from millstream.clock import SystemClock
from millstream.errors import Conflict
from millstream.spark.archive.delta import check_names, open_delta, stats_of, value_of
from millstream.spark.archive.folders import Folder
from millstream.spark.archive.lake_columns import text_of
from millstream.spark.archive.partitioning import NULL, PartitionBy
from millstream.spark.archive.table import OFFSETS
from millstream.spark.archive.typed_columns import union
from millstream.spark.tables.sink import Covered, FileChange, TableFile

_HOUR_MS = 3_600_000


class DeltaSink:
    """The table, and how it is changed."""

    def __init__(self, folder: Folder, columns: pa.Schema, by: PartitionBy, expire_ms: int) -> None:
        self._folder, self._by = folder, by
        self._hours = -(-expire_ms // _HOUR_MS)
        duration = f"interval {self._hours} hours"
        settings = {
            "delta.logRetentionDuration": duration,
            "delta.deletedFileRetentionDuration": duration,
        }
        self._table = open_delta(
            folder, self._with_partition(columns), [by.table_column], "millstream", settings
        )

    def _with_partition(self, columns: pa.Schema) -> pa.Schema:
        return columns.append(pa.field("date", pa.date32())) if self._by.by_day else columns

    def prepare(self, columns: pa.Schema) -> pa.Schema:
        """Add missing columns to the table; return all columns of the table."""
        present = union([pa.schema(self._table.schema().to_arrow())])
        target = union([present, columns])
        check_names(target)
        if changed := [field for field in target if field not in present]:
            self._table.alter.add_columns(list(Schema.from_arrow(pa.schema(changed)).fields))
            self._table.update_incremental()
        return pa.schema(
            [field for field in target if not (self._by.by_day and field.name == "date")]
        )

    def covered(self, logs: Sequence[str]) -> Covered:
        """Return what the newest version holds of logs."""
        self._table.update_incremental()
        ends = {log: self._table.transaction_version(f"millstream:{log}") for log in logs}
        ids = {log: self._table.transaction_version(f"millstream-id:{log}") for log in logs}
        return Covered(
            {log: end for log, end in ends.items() if end is not None},
            {log: number for log, number in ids.items() if number},
        )

    def files(self) -> list[TableFile]:
        """Return the files of the newest version."""
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        column = f"partition.{self._by.table_column}"
        return [
            TableFile(
                path=unquote(action["path"]),
                partition=_text(action[column]),
                bytes=action["size_bytes"],
                rows=action["num_records"] or 0,
            )
            for action in actions
        ]

    def commit(self, change: FileChange) -> None:
        """Apply a change atomically."""
        column, now_ms = self._by.table_column, SystemClock().wall_ms()
        is_change = not change.keeps_rows
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.bytes,
                partition_values={column: value_of(file)},
                modification_time=now_ms,
                data_change=is_change,
                stats=stats_of(file),
            )
            for file in change.added
        ]
        actions += [
            RemoveAction(
                file.path,
                data_change=is_change,
                deletion_timestamp=now_ms,
                partition_values={column: None if file.partition == NULL else file.partition},
                size=file.bytes,
            )
            for file in change.removed
        ]
        ends, ids = change.covered.ends, change.covered.ids
        noted = [Transaction(f"millstream:{log}", end) for log, end in sorted(ends.items())]
        noted += [
            Transaction(f"millstream-id:{log}", number) for log, number in sorted(ids.items())
        ]
        try:
            self._table.create_write_transaction(
                actions, "append", self._table.schema(), [column],
                commit_properties=CommitProperties(
                    custom_metadata={OFFSETS: text_of(ends, ids)}, app_transactions=noted
                ),
            )  # fmt: skip
        except CommitFailedError as error:
            raise Conflict(
                f"another writer changed the table {self._folder.text} at the same time: {error}; "
                "run it again"
            ) from error
        self._table.update_incremental()

    def version(self) -> int:
        """Return the newest version."""
        return int(self._table.version())

    def expire(self, before_ms: int) -> int:
        """Remove files that versions after a time do not need, and files of killed runs."""
        hours = -(-max(0, SystemClock().wall_ms() - before_ms) // _HOUR_MS)
        gone = self._table.vacuum(
            retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True
        )
        self._table.create_checkpoint()
        self._table.cleanup_metadata()
        self._table.update_incremental()
        return len(gone)


def _text(value: object) -> str:
    if value is None:
        return NULL
    return str(value).lower() if isinstance(value, bool) else str(value)
