"""Heads: the start, the end, the size and the retention of a log.

Users see `start` and `end`. Bytes below `dropped` were deleted; `dropped` follows `start` in the
background. Entries from `dropped` on are contiguous except for `gaps`: offsets that never held a record,
because the log was truncated past its end. Below `dropped` only entries with records that queues still
need remain, of `kept` bytes.

Ids of logs are never reused, and an offset of an id never stands for another record: a name that is
deleted and made again stands for a new log. If the last records of a log are set aside, the log gets
another name, and its name goes to a new log: a fork at that point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec
from msgspec import Struct, field

from millstream.record import Retention
from millstream.store.state.entity import Entity

Bytes = bytes
"""The type `bytes`; a head has a field `bytes` for its number of bytes."""

GAPS_KEPT = 16
"""The number of remembered gaps below `dropped`, which lossy queues do not count as lost; older gaps
are joined."""


class LogNamed(Struct, array_like=True, frozen=True):
    """The change that points a name to a log; 0 for no log."""

    log_id: int


class Name(Entity, array_like=True):
    """The id of the log that a name stands for."""

    log_id: int = 0

    changes: ClassVar = LogNamed

    def apply(self, change: LogNamed) -> None:
        """Point to another log."""
        self.log_id = change.log_id

    def exists(self) -> bool:
        """Return whether the name stands for a log."""
        return self.log_id != 0

    def view(self) -> int:
        """Return the id of the log."""
        return self.log_id


class Created(Struct, array_like=True, frozen=True, tag=1):
    """The creation of the log."""

    name: str
    at_ms: int


class RecordsAppended(Struct, array_like=True, frozen=True, tag=2, gc=False):
    """The addition of records at the end."""

    count: int
    bytes: int
    at_ms: int


class LogTruncated(Struct, array_like=True, frozen=True, tag=3):
    """The removal of records before `start`; with a start past the end, the end moves too."""

    start: int


class Dropped(Struct, array_like=True, frozen=True, tag=4):
    """The deletion of entries before `through` from the disk, except for records that queues need."""

    through: int
    bytes: int | tuple[int, int]
    """The number of deleted bytes; with a change of `kept`, a pair of both numbers."""


class Retained(Struct, array_like=True, frozen=True, tag=5):
    """A new retention."""

    retention: Retention


class HoldTaken(Struct, array_like=True, frozen=True, tag=6):
    """The hold of a staging handle, until a store time; an empty token releases the log."""

    token: str
    until_ms: int


class Deleted(Struct, array_like=True, frozen=True, tag=7):
    """The deletion of the log; its bytes are deleted later."""


class Owned(Struct, array_like=True, frozen=True, tag=8):
    """A new owner: the id of the store that may append, empty for this store, and the epoch."""

    owner: str
    epoch: int


class LogPlaced(Struct, array_like=True, frozen=True, tag=9):
    """The start and the end of a new fork, or of a new copy from another store."""

    start: int
    dropped: int
    end: int


class Renamed(Struct, array_like=True, frozen=True, tag=10):
    """The log was set aside under another name, and its name went to another log."""

    name: str
    at_ms: int


class Touched(Struct, array_like=True, frozen=True, tag=11):
    """The time of another change of the log, in any copy."""

    at_ms: int


class NameTaken(Struct, array_like=True, frozen=True, tag=12):
    """The creation of the log as a fork that takes the name and the settings of a log set aside."""

    name: str
    former_name: str
    created_ms: int
    start: int
    dropped: int
    end: int
    timestamp_ms: int
    retention: Retention
    owner: str
    epoch: int
    gaps: list[tuple[int, int]]


class Bounds(Struct, frozen=True, gc=False):
    """The view of a log for readers, replaced by each commit."""

    name: str = ""
    start: int = 0
    end: int = 0
    deleted: bool = True


Change = (
    Created
    | RecordsAppended
    | LogTruncated
    | Dropped
    | Retained
    | HoldTaken
    | Deleted
    | Owned
    | LogPlaced
    | Renamed
    | Touched
    | NameTaken
)
"""The changes of a head."""


class Head(Entity, array_like=True):
    """The head of a log."""

    name: str = ""
    created_ms: int = 0
    start: int = 0
    end: int = 0
    dropped: int = 0
    bytes: int = 0
    timestamp_ms: int = 0
    """The time of the last change of records, metadata or start, in any copy."""
    retention: Retention = Retention()
    token: str = ""
    until_ms: int = 0
    deleted: bool = False
    """Whether the log is deleted for users; the head goes with the last bytes."""
    kept: int = 0
    """The part of `bytes` in entries below `dropped`."""
    owner: str = ""
    """The id of the store that may append, empty for this store."""
    epoch: int = 0
    """Counts the changes of the owner; the highest epoch is right."""
    former_name: str = ""
    """The name of the log before it was set aside; empty for other logs."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Half-open ranges below `start` that never held a record, in order and disjoint."""

    changes: ClassVar = Change
    computed: ClassVar = (RecordsAppended,)

    def apply(self, change: Change) -> None:
        """Apply a change."""
        match change:
            case RecordsAppended():
                self.end += change.count
                self.bytes += change.bytes
                if change.at_ms > self.timestamp_ms:
                    self.timestamp_ms = change.at_ms
            case Created():
                self.name = change.name
                self.created_ms = self.timestamp_ms = change.at_ms
            case LogTruncated():
                self._skip(self.end, change.start)
                self.start = change.start
                self.end = max(self.end, change.start)
            case Dropped():
                gone = change.bytes
                gone, kept_more = (gone, 0) if isinstance(gone, int) else gone
                self.dropped = change.through
                self._join_gaps()
                self.bytes -= gone
                self.kept += kept_more
            case Retained():
                self.retention = change.retention
            case HoldTaken():
                self.token, self.until_ms = change.token, change.until_ms
            case Deleted():
                self.deleted = True
                self.start = self.end
            case Owned():
                self.owner, self.epoch = change.owner, change.epoch
            case LogPlaced():
                self.start, self.dropped, self.end = change.start, change.dropped, change.end
                self._skip(0, change.dropped)
                self.timestamp_ms = 0  # a `Touched` with the time of the source follows
            case Renamed():
                self.former_name, self.name = self.name, change.name
                self.created_ms, self.retention = change.at_ms, Retention()
                self.owner, self.epoch = "", 0
            case Touched():
                self.timestamp_ms = max(self.timestamp_ms, change.at_ms)
            case NameTaken():
                self.name, self.former_name = change.name, change.former_name
                self.created_ms = change.created_ms
                self.start, self.dropped, self.end = change.start, change.dropped, change.end
                self.timestamp_ms, self.retention = change.timestamp_ms, change.retention
                self.owner, self.epoch = change.owner, change.epoch
                self.gaps = list(change.gaps)

    def _skip(self, start: int, stop: int) -> None:
        """Add a gap between the old end and the next offset."""
        if start >= stop:
            return
        if self.gaps and self.gaps[-1][1] == start:
            start = self.gaps.pop()[0]
        self.gaps.append((start, stop))

    def _join_gaps(self) -> None:
        """Join the oldest gaps below `dropped` into a gap of the same total length."""
        below = sum(stop <= self.dropped for _, stop in self.gaps)
        while below > GAPS_KEPT:
            (start, stop), (_, end) = self.gaps[:2]
            self.gaps[:2] = [(self.gaps[1][0] - (stop - start), end)]
            below -= 1

    def exists(self) -> bool:
        """Return whether the log was created."""
        return bool(self.name)

    def next_at(self, position: int) -> int:
        """Return the offset of the first existing or future record at or after a position."""
        position = max(position, self.dropped)
        for start, stop in self.gaps:
            if start <= position < stop:
                return stop
        return position

    def count(self, start: int, stop: int) -> int:
        """Return the number of offsets in [start, stop) outside of gaps."""
        return sum(high - low for low, high in without(self.gaps, start, stop))

    def view(self) -> Bounds:
        """Return the current bounds."""
        return Bounds(self.name, self.start, self.end, self.deleted)

    def wants_dropping(self) -> bool:
        """Return whether retention has not yet processed all bytes below the start."""
        return self.dropped < self.start or (self.deleted and not self.kept)

    def encode(self) -> Bytes:
        """Encode the record without trailing default fields, which most logs have."""
        data = msgspec.msgpack.encode(self)
        if self.gaps:
            return data
        fewer = 1 if self.owner or self.epoch or self.former_name else 4 if self.kept else 5
        count = len(Head.__struct_fields__) - fewer
        begin = bytes((0x90 + count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
        return begin + data[3:-fewer]  # an empty trailing field takes a byte


def without(gaps: Sequence[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of [start, stop) outside of gaps, in order."""
    for low, high in gaps:
        if start < min(low, stop):
            yield start, min(low, stop)
        start = max(start, high)
    if start < stop:
        yield start, stop
