"""Heads: where a log begins and ends, how large it is, and what it may forget.

`start` and `end` are what users see; `dropped` is how far bytes have really been deleted, and
follows `start` in the background. From `dropped` on entries have no gap; below it only those are left
that hold something a queue still needs, of `kept` bytes. Ids of logs are never reused: a name that is
deleted and made again is another log.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Struct

from millstream.record import Retention
from millstream.store.engine import Snapshot
from millstream.store.entity import Entity
from millstream.store.overlay import Overlay

Bytes = bytes
"""As `bytes` of a head is a number."""
Written = tuple[Bytes, Bytes | None]


class Named(Struct, array_like=True, frozen=True):
    """A name now stands for this log; 0 for none."""

    log_id: int


class Name(Entity, array_like=True):
    """Which log a name stands for."""

    log_id: int = 0

    changes: ClassVar = Named

    def apply(self, change: Named) -> None:
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


class Appended(Struct, array_like=True, frozen=True, tag=2):
    """Records were added at the end."""

    count: int
    bytes: int
    at_ms: int


class Truncated(Struct, array_like=True, frozen=True, tag=3):
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


class Taken(Struct, array_like=True, frozen=True, tag=6):
    """Somebody holds the log exclusively until then, in store time; an empty token frees it."""

    token: str
    until_ms: int


class Deleted(Struct, array_like=True, frozen=True, tag=7):
    """The log is gone; its bytes follow."""


class Bounds(Struct, frozen=True):
    """What readers see of a log, replaced whole by each commit."""

    name: str = ""
    start: int = 0
    end: int = 0
    deleted: bool = True


class Head(Entity, array_like=True):
    """One log's head."""

    name: str = ""
    created_ms: int = 0
    start: int = 0
    end: int = 0
    dropped: int = 0
    bytes: int = 0
    timestamp_ms: int = 0
    retention: Retention = Retention()
    token: str = ""
    until_ms: int = 0
    deleted: bool = False
    """Gone for users; removed when the last of its bytes is."""
    kept: int = 0
    """Of `bytes`, those of entries below `dropped`."""

    changes: ClassVar = Created | Appended | Truncated | Dropped | Retained | Taken | Deleted

    def apply(
        self, change: Created | Appended | Truncated | Dropped | Retained | Taken | Deleted
    ) -> None:
        """Move to the next state."""
        match change:
            case Appended():
                self.end += change.count
                self.bytes += change.bytes
                if change.at_ms > self.timestamp_ms:
                    self.timestamp_ms = change.at_ms
            case Created():
                self.name = change.name
                self.created_ms = self.timestamp_ms = change.at_ms
            case Truncated():
                self.start = change.start
                self.end = max(self.end, change.start)
            case Dropped():
                gone = change.bytes
                gone, kept = (gone, 0) if isinstance(gone, int) else gone
                self.dropped = change.through
                self.bytes -= gone
                self.kept += kept
            case Retained():
                self.retention = change.retention
            case Taken():
                self.token, self.until_ms = change.token, change.until_ms
            case Deleted():
                self.deleted = True
                self.start = self.end

    def exists(self) -> bool:
        """Whether it was created."""
        return bool(self.name)

    def view(self) -> Bounds:
        """The ends as they are now."""
        return Bounds(self.name, self.start, self.end, self.deleted)

    def wants_dropping(self) -> bool:
        """Whether bytes lie on disk that nobody can read any more, and that were not looked at."""
        return self.dropped < self.start or (self.deleted and not self.kept)

    def records(self, key: Bytes, overlay: Overlay, snapshot: Snapshot) -> list[Written]:
        """The record; where nothing is kept, without the field that says so."""
        if not self.exists():
            return [(key, None)]
        data = msgspec.msgpack.encode(self)
        return [(key, data if self.kept else _FEWER + data[1:-1])]


_FEWER = bytes((0x90 + len(Head.__struct_fields__) - 1,))
"""The first byte of a MessagePack array that lacks the last field."""
