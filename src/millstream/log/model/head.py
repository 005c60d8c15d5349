"""Heads: where a log begins and ends, how large it is, and what it may forget.

`start` and `end` are what users see; `dropped` is how far bytes have really been deleted, and
follows `start` in the background. From `dropped` on entries follow each other, but for `gaps`: offsets
that never held a record, because the log was truncated past its end. Below `dropped` only those entries
are left that hold something a queue still needs, of `kept` bytes. Ids of logs are never reused: a name
that is deleted and made again is another log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec
from msgspec import Struct, field

from millstream.record import Retention
from millstream.store.state.entity import Entity

Bytes = bytes
"""The type `bytes`, whose name a head uses for the number of its bytes."""

GAPS_KEPT = 16
"""Of the gaps below `dropped`, so many are remembered: lossy queues do not count them as lost.
Older ones are joined."""


class LogNamed(Struct, array_like=True, frozen=True):
    """A name now stands for this log; 0 for none."""

    log_id: int


class Name(Entity, array_like=True):
    """Which log a name stands for."""

    log_id: int = 0

    changes: ClassVar = LogNamed

    def apply(self, change: LogNamed) -> None:
        """Point elsewhere."""
        self.log_id = change.log_id

    def exists(self) -> bool:
        """A deleted name has no record."""
        return self.log_id != 0

    def view(self) -> int:
        """The log that the name stands for."""
        return self.log_id


class Created(Struct, array_like=True, frozen=True, tag=1):
    """The log exists from now on."""

    name: str
    at_ms: int


class RecordsAppended(Struct, array_like=True, frozen=True, tag=2):
    """Records were added at the end."""

    count: int
    bytes: int
    at_ms: int


class LogTruncated(Struct, array_like=True, frozen=True, tag=3):
    """Records before `start` are gone; past the end, both ends move."""

    start: int


class Dropped(Struct, array_like=True, frozen=True, tag=4):
    """Entries before `through` have been deleted from the disk, but for what a queue needs."""

    through: int
    bytes: int | tuple[int, int]
    """How many bytes have gone; where more or less is kept than before, also by how much."""


class Retained(Struct, array_like=True, frozen=True, tag=5):
    """What the log may forget has changed."""

    retention: Retention


class HoldTaken(Struct, array_like=True, frozen=True, tag=6):
    """A staging handle holds the log until then, in store time; an empty token releases it."""

    token: str
    until_ms: int


class Deleted(Struct, array_like=True, frozen=True, tag=7):
    """The log is gone; its bytes follow."""


class Owned(Struct, array_like=True, frozen=True, tag=8):
    """Who may append has changed: the id of a store, empty for this one; and the epoch."""

    owner: str
    epoch: int


class LogPlaced(Struct, array_like=True, frozen=True, tag=9):
    """A log that was just created begins and ends elsewhere: a fork, or a copy from another store."""

    start: int
    dropped: int
    end: int


class EndSetBack(Struct, array_like=True, frozen=True, tag=10):
    """Records from `end` on now belong to another log."""

    end: int
    bytes: int
    """How many bytes went with them."""


class Touched(Struct, array_like=True, frozen=True, tag=11):
    """Something else of the log was changed then, here or in another copy."""

    at_ms: int


class Bounds(Struct, frozen=True):
    """What readers see of a log, replaced whole by each commit."""

    name: str = ""
    start: int = 0
    end: int = 0
    deleted: bool = True
    setbacks: int = 0


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
    | EndSetBack
    | Touched
)
"""What can happen to a head."""


class Head(Entity, array_like=True):
    """One log's head."""

    name: str = ""
    created_ms: int = 0
    start: int = 0
    end: int = 0
    dropped: int = 0
    bytes: int = 0
    timestamp_ms: int = 0
    """When records, metadata or start were changed last, in whichever copy."""
    retention: Retention = Retention()
    token: str = ""
    until_ms: int = 0
    deleted: bool = False
    """Gone for users; removed when the last of its bytes is."""
    kept: int = 0
    """Of `bytes`, those of entries below `dropped`."""
    owner: str = ""
    """The store that may append, empty for this one."""
    epoch: int = 0
    """How often the owner has changed; the highest is right."""
    setbacks: int = 0
    """How often the end went back: offsets above may mean something else since."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Offsets below `start` that never held a record, half-open, in order, apart from each other."""

    changes: ClassVar = Change
    computed: ClassVar = (RecordsAppended,)

    def apply(self, change: Change) -> None:
        """Move to the next state."""
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
                gone, kept = (gone, 0) if isinstance(gone, int) else gone
                self.dropped = change.through
                self._join_gaps()
                self.bytes -= gone
                self.kept += kept
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
                self.timestamp_ms = 0  # that of what it is made from follows
            case EndSetBack():
                self.end = change.end
                self.bytes -= change.bytes
                self.setbacks += 1
            case Touched():
                self.timestamp_ms = max(self.timestamp_ms, change.at_ms)

    def _skip(self, start: int, stop: int) -> None:
        """Note a gap between the end so far and the offset at which the log goes on."""
        if start >= stop:
            return
        if self.gaps and self.gaps[-1][1] == start:
            start = self.gaps.pop()[0]
        self.gaps.append((start, stop))

    def _join_gaps(self) -> None:
        """Let old gaps, where nothing can be read any more, become one of the same length."""
        below = sum(stop <= self.dropped for _, stop in self.gaps)
        while below > GAPS_KEPT:
            (start, stop), (_, end) = self.gaps[:2]
            self.gaps[:2] = [(self.gaps[1][0] - (stop - start), end)]
            below -= 1

    def exists(self) -> bool:
        """Whether it was created."""
        return bool(self.name)

    def next_at(self, position: int) -> int:
        """Where the first record at or after an offset is, or will be, that was not dropped."""
        position = max(position, self.dropped)
        for start, stop in self.gaps:
            if start <= position < stop:
                return stop
        return position

    def count(self, start: int, stop: int) -> int:
        """How many offsets in [start, stop) are not in a gap: they hold a record, or held one."""
        return sum(high - low for low, high in without(self.gaps, start, stop))

    def view(self) -> Bounds:
        """The ends as they are now."""
        return Bounds(self.name, self.start, self.end, self.deleted, self.setbacks)

    def wants_dropping(self) -> bool:
        """Whether bytes below the start lie on disk that retention has not looked at yet."""
        return self.dropped < self.start or (self.deleted and not self.kept)

    def encode(self) -> Bytes:
        """The row, without trailing fields that have their defaults: in most logs all of them."""
        data = msgspec.msgpack.encode(self)
        if self.gaps:
            return data
        fewer = 1 if self.owner or self.epoch or self.setbacks else 4 if self.kept else 5
        count = len(Head.__struct_fields__) - fewer
        begin = bytes((0x90 + count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
        return begin + data[3:-fewer]  # each of the last fields is one byte if it is empty


def without(gaps: Sequence[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The stretches of [start, stop) that are not in a gap, in order."""
    for low, high in gaps:
        if start < min(low, stop):
            yield start, min(low, stop)
        start = max(start, high)
    if start < stop:
        yield start, stop
