"""Rows of an imported file: checked records, and the rows that are bad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import TypeVar

from msgspec import Struct

from millstream.errors import InvalidInput, InvalidName
from millstream.format.packing import TIMESTAMP_MS_MAX
from millstream.limits import Limits
from millstream.log.model.names import PRIVATE, check_name
from millstream.partitioning import PARTITIONS_MAX

T = TypeVar("T")

_VALUE_MAX = Limits().value_bytes_max
_KEY_MAX = Limits().key_bytes_max


class RecordColumns(Struct, frozen=True):
    """Records of a file, as columns of equal length."""

    logs: Sequence[str]
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    headers: Sequence[bytes]
    """The packed headers of each record."""
    timestamps: Sequence[int | None]
    """None if the file has no timestamp for the record."""
    partitions: Sequence[int]
    """How many partitions the log had; 0 for a plain log."""

    def __len__(self) -> int:
        return len(self.values)

    def size(self) -> int:
        """Return the bytes of all keys and values."""
        values, keys = filter(None, self.values), filter(None, self.keys)
        return sum(map(len, values)) + sum(map(len, keys))


def joined(groups: Sequence[RecordColumns]) -> RecordColumns:
    """Return the records of several groups, in order."""
    fields = RecordColumns.__struct_fields__
    columns = [
        list(chain.from_iterable(getattr(group, name) for group in groups)) for name in fields
    ]
    return RecordColumns(*columns)


class BadRow(Struct, frozen=True):
    """A row that is no record, and why."""

    row: int
    reason: str


class RowChunk(Struct, frozen=True):
    """Consecutive rows of a file."""

    records: RecordColumns
    bad: Sequence[BadRow]
    size: int
    """How many bytes, or rows of a table, the chunk took."""


@lru_cache(maxsize=1_024)
def check_target(name: str) -> str:
    """Return the name of a log to which records can be appended; else raise `InvalidInput`."""
    if not name:
        raise InvalidInput("the record names no log; --log names one for all records")
    if name.startswith(PRIVATE):
        raise InvalidName(
            f"log {name!r} belongs to a queue, a room or the store; --log names another", name=name
        )
    return check_name(name)


def checked(records: RecordColumns, *, needs_log: bool) -> RecordColumns:
    """Return records within the limits of a store, else raise `InvalidInput`.

    With `needs_log` every record must name a log.
    """
    if needs_log:
        for name in set(records.logs):
            check_target(name)
    _check_size("value", records.values, _VALUE_MAX)
    _check_size("key", records.keys, _KEY_MAX)
    for timestamp in set(records.timestamps):
        if timestamp is not None and not 0 <= timestamp <= TIMESTAMP_MS_MAX:
            raise InvalidInput(f"a timestamp is milliseconds since the epoch, not {timestamp}")
    for count in set(records.partitions):
        if not 0 <= count <= PARTITIONS_MAX:
            raise InvalidInput(f"a log has at most {PARTITIONS_MAX} partitions, not {count}")
    return records


def _check_size(field: str, cells: Sequence[bytes | None], size_max: int) -> None:
    size = max(map(len, filter(None, cells)), default=0)
    if size > size_max:
        raise InvalidInput(f"the {field} has {size:,} bytes; the limit is {size_max:,}")


def chunk_of(
    rows: Sequence[T], first_row: int, convert: Callable[[Sequence[T]], RecordColumns]
) -> RowChunk:
    """Return the records of rows, converted together; if a row is bad, each row is converted alone."""
    try:
        return RowChunk(convert(rows), [], len(rows))
    except InvalidInput:
        pass
    groups: list[RecordColumns] = []
    bad: list[BadRow] = []
    for index, row in enumerate(rows):
        try:
            groups.append(convert([row]))
        except InvalidInput as error:
            bad.append(BadRow(first_row + index, str(error)))
    return RowChunk(joined(groups), bad, len(rows))
