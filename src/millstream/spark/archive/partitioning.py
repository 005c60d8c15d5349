"""Partitions of archives and tables: by the day of a time, or by the values of a column."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from millstream.errors import InvalidInput

APPENDED = "appendTimestamp"
NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of rows without a value, as Hive and Spark name their directory."""

NAME_BYTES_MAX = 200
"""The longest name of a directory in bytes. A longer value is cut, and ends with a digest."""

DAY_US = 86_400_000_000

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^<>|~]""")


class PartitionBy(Struct, frozen=True):
    """The column that decides about the partition of a row."""

    column: str = APPENDED
    by_day: bool = True

    @property
    def table_column(self) -> str:
        """The partition column of a Delta table: the column itself, or `date` for days."""
        return "date" if self.by_day else self.column

    @property
    def label(self) -> str:
        """What the names of directories begin with.

        Files hold the column itself, and readers of directories would guess another type for a
        column of the same name.
        """
        return "date" if self.by_day else f"by_{self.column}"

    def directory(self, value: str) -> str:
        """Return the directory of a partition; the empty text shares that of null, as in Spark."""
        return escaped(self.label, value or NULL)

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each partition, with the value of the partition."""
        column = batch.column(self.column)
        if self.by_day:
            yield from _by_day(batch, column)
            return
        values = column.unique()
        if len(values) == 1:
            yield text_of(values[0]), batch
            return
        for value in values:
            mask = pc.equal(column, value) if value.is_valid else column.is_null()
            yield text_of(value), batch.filter(mask)


BY_DATE = PartitionBy()
"""Partitions by the date of the append, in UTC."""


def _by_day(batch: pa.RecordBatch, column: pa.Array) -> Iterator[tuple[str, pa.RecordBatch]]:
    if pa.types.is_date32(column.type):
        days = column.cast(pa.int32())
    else:
        micros = column.cast(pa.int64())
        numbers = micros.fill_null(0).to_numpy() // DAY_US
        days = pa.array(numbers.astype(np.int32), mask=np.asarray(micros.is_null()))
    values = days.unique()
    for value in values:
        rows = batch
        if len(values) > 1:
            rows = batch.filter(pc.equal(days, value) if value.is_valid else days.is_null())
        yield (str(np.datetime64(value.as_py(), "D")) if value.is_valid else NULL), rows


def text_of(value: pa.Scalar) -> str:
    """Return a value as it names its partition."""
    if not value.is_valid:
        return NULL
    plain = value.as_py()
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def iceberg_text(value: object, *, by_day: bool) -> str:
    """Return a value of Iceberg as it names its partition; a day is a number of days."""
    if value is None:
        return NULL
    if by_day:
        return str(np.datetime64(value, "D"))  # type: ignore[call-overload]
    return str(value).lower() if isinstance(value, bool) else str(value)


def escaped(label: str, value: str) -> str:
    """Return the directory `LABEL=VALUE`, as Spark, DuckDB and pyarrow read it."""
    name = "=".join(
        _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text) for text in (label, value)
    )
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(value.encode()).hexdigest()[:16]
    return name.encode()[: NAME_BYTES_MAX - 20].decode("utf-8", "ignore") + "~" + digest


def partition_by(text: str, schema: pa.Schema) -> PartitionBy:
    """Return the partitioning that a user asks for: `date`, or a column of the schema.

    A column of times partitions by its day.
    """
    if text in ("", "date"):
        return BY_DATE
    if text not in schema.names:
        raise InvalidInput(
            f"there is no column {text!r} to partition by; expected date (the day of the append) "
            f"or one of {', '.join(schema.names)}"
        )
    kind = schema.field(text).type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return PartitionBy(text)
    if pa.types.is_string(kind) or pa.types.is_int64(kind) or pa.types.is_boolean(kind):
        return PartitionBy(text, by_day=False)
    raise InvalidInput(
        f"column {text!r} is {kind}; partitions are by a text, a whole number, a boolean, a date or "
        "a time"
    )
