"""The records of an export: logs, offsets, times and a filter; and the columns of chosen records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import compress
from typing import Any, TypeVar

from msgspec import Struct

from millstream.errors import InvalidInput, NotFound
from millstream.filters.filter import Filter
from millstream.log.model.block import RecordBlock
from millstream.log.model.names import PRIVATE
from millstream.partitioning import partition_name
from millstream.threads.database import Millstream

T = TypeVar("T")


class ExportedLog(Struct, frozen=True):
    """A plain log, or a partition of a log with partitions."""

    name: str
    partition: int | None = None
    partitions: int = 0


class ChosenRecords(Struct, frozen=True):
    """Records of one log, as columns of equal length."""

    log: ExportedLog
    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: Sequence[bytes | None]
    cells: Sequence[bytes]
    """The packed headers of each record."""
    values: Sequence[bytes | None]

    def beside(self, *columns: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the offset, the timestamp and the key of each record, and the cells of columns."""
        return zip(self.offsets, self.timestamps, self.keys, *columns, strict=True)


@dataclass(frozen=True)
class RecordSelection:
    """The conditions of an export; a chosen record meets every condition."""

    start: int | None = None
    """The first offset; a negative number counts from the end."""
    stop: int | None = None
    """The offset behind the last one."""
    since_ms: int | None = None
    until_ms: int | None = None
    """Timestamps in [since, until), in milliseconds since the epoch."""
    filter: Filter | None = None

    def read(self, ms: Millstream, log: ExportedLog) -> Iterator[tuple[ChosenRecords, int]]:
        """Yield the chosen records of a log by blocks, and how many records each block has."""
        handle = ms.log(log.name)
        start = self.start
        if self.since_ms is not None:
            offset = handle.offset_at(self.since_ms)  # every record before it is too old
            start = offset if start is None or 0 <= start < offset else start
        for block in handle.read_blocks(start, self.stop):
            yield self._chosen(log, block), block.count

    def _chosen(self, log: ExportedLog, block: RecordBlock) -> ChosenRecords:
        timestamps, keys = block.timestamps(), block.keys()
        chosen = self._flags(block, timestamps, keys)
        columns = (block.offsets, timestamps, keys, block.header_cells(), block.values())
        if chosen is not None:
            columns = tuple(_picked(column, chosen) for column in columns)  # type: ignore[assignment]
        return ChosenRecords(log, *columns)

    def _flags(
        self, block: RecordBlock, timestamps: Sequence[int], keys: Sequence[bytes | None]
    ) -> list[bool] | None:
        """Return for each record whether the export contains the record; None: all records."""
        flags: list[bool] | None = None
        if self.since_ms is not None or self.until_ms is not None:
            since = self.since_ms or 0
            until = timestamps[0] + 2**63 if self.until_ms is None else self.until_ms
            flags = [since <= timestamp < until for timestamp in timestamps]
        if self.filter is None:
            return flags
        matches = self.filter.match_many(
            block.visible_headers(),
            keys=keys,
            timestamps=timestamps,
            log=block.log,
            valid=block.valid(),
        )
        if flags is None:
            return matches
        return [chosen and match for chosen, match in zip(flags, matches, strict=True)]


def _picked(column: Sequence[T], chosen: Sequence[bool]) -> list[T]:
    return list(compress(column, chosen))


def named_logs(ms: Millstream, names: Sequence[str]) -> list[str]:
    """Return the logs of names and patterns, each once; raise `NotFound` for a name without a log."""
    chosen: dict[str, None] = {}
    for name in names:
        if "*" not in name:
            chosen[name] = None
            continue
        matching = [
            info.name
            for info in ms.logs()
            if fnmatchcase(info.name, name) and not info.name.startswith(PRIVATE)
        ]
        if not matching:
            raise NotFound(
                f"no log matches {name!r}; `millstream log list` lists the logs", name=name
            )
        chosen.update(dict.fromkeys(matching))
    return list(chosen)


def exported_logs(ms: Millstream, name: str, selection: RecordSelection) -> list[ExportedLog]:
    """Return a log, or the partitions of a log with partitions."""
    info = ms.log(name).info()
    if info is None:
        raise NotFound(f"there is no log {name!r}", name=name)
    if not info.partitions:
        return [ExportedLog(name)]
    if selection.start is not None or selection.stop is not None:
        raise InvalidInput(
            f"log {name!r} has partitions: offsets are for a single partition, such as "
            f"{partition_name(name, 0)}"
        )
    return [
        ExportedLog(partition_name(name, number), number, info.partitions)
        for number in range(info.partitions)
    ]
