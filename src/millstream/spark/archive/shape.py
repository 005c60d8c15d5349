"""The shape of archived files: the typed columns of each log, and the partitions."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.spark.archive.lake_columns import archive_schema
from millstream.spark.archive.partitioning import BY_DATE, partition_by
from millstream.spark.archive.table import TableLayout
from millstream.spark.archive.typed_columns import TypedColumns, typed_columns, union
from millstream.spark.source.typed_rows import newest_schema

if TYPE_CHECKING:
    from millstream.command import Session


class FileShape(Struct, frozen=True):
    """What the files of a run look like."""

    typed: dict[str, TypedColumns]
    """The columns of logs with a schema."""
    layout: TableLayout


def file_shape(
    session: Session, logs: Collection[str], *, columns: bool, by: str, table: bool
) -> FileShape:
    """Return the shape for logs; raise `InvalidInput` if one table could not have their columns."""
    if by and not columns and by not in (*archive_schema().names, "date"):
        raise InvalidInput(
            f"column {by!r} is a field of values: partitions by it need typed columns"
        )
    schemas = {log: newest_schema(session, log) for log in logs} if columns else {}
    typed = {log: typed_columns(schema) for log, schema in schemas.items() if schema is not None}
    base = archive_schema()
    partitions = BY_DATE
    for log in logs:
        fields = typed[log].fields() if log in typed else []
        partitions = partition_by(by, pa.schema([*base, *fields]))
    every = union([each.fields() for each in typed.values()]) if table else ()
    return FileShape(typed, TableLayout(tuple(every), partitions))
