"""The stored state of a cursor: its floor, and the acknowledged ranges above the floor."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct

from millstream.log.model.acknowledged import AcknowledgedRanges, Range
from millstream.store.state.entity import Entity


class CursorOpened(Struct, array_like=True, frozen=True, tag=1):
    """The creation of the cursor."""

    floor: int
    section: int
    durable: bool


class Acked(Struct, array_like=True, frozen=True, tag=2):
    """The acknowledgement of ranges."""

    ranges: list[Range]


class FloorMoved(Struct, array_like=True, frozen=True, tag=3):
    """A new floor; acknowledgements above the old floor are forgotten."""

    floor: int


class CursorTaken(Struct, array_like=True, frozen=True, tag=4):
    """The creation of the cursor in a log that took the name of a log set aside."""

    floor: int
    ranges: list[Range]
    section: int
    durable: bool
    set_back: int


class LossCounted(Struct, array_like=True, frozen=True, tag=5):
    """More records that the log deleted before the cursor acknowledged them."""

    count: int
    below: int = 0
    """Records below this offset are not counted again, wherever the cursor is moved."""


class _StoredCursor(Struct, array_like=True):
    lsn: int
    durable: bool
    section: int
    floor: int
    ranges: list[Range]
    set_back: int
    lost: int = 0
    lost_below: int = 0


_decode = msgspec.msgpack.Decoder(_StoredCursor).decode


class CursorState(Entity):
    """A cursor. In memory its marks are `AcknowledgedRanges`, so that the cost of an acknowledgement does not grow
    with the number of ranges; the record stores plain ranges."""

    present: bool = False
    durable: bool = True
    section: int = 0
    marks: Any = None
    set_back: int = 0
    """Counts the times that records behind the cursor were set aside."""
    lost: int = 0
    """Counts the records that the log deleted before the cursor acknowledged them, and that the cursor has
    passed since. Deleted records above the floor are not in it yet (`overtaken`)."""
    lost_below: int = 0
    """Losses below this offset are counted, or never concerned the cursor."""

    changes: ClassVar = CursorOpened | Acked | FloorMoved | CursorTaken | LossCounted

    def apply(self, change: CursorOpened | Acked | FloorMoved | CursorTaken | LossCounted) -> None:
        """Apply a change."""
        match change:
            case Acked():
                for start, stop in change.ranges:
                    self.marks.add(start, stop)
            case FloorMoved():
                self.marks = AcknowledgedRanges(change.floor)
            case CursorOpened():
                self.present = True
                self.marks = AcknowledgedRanges(change.floor)
                self.section, self.durable = change.section, change.durable
            case CursorTaken():
                self.present = True
                self.marks = AcknowledgedRanges(change.floor, change.ranges)
                self.section, self.durable = change.section, change.durable
                self.set_back = change.set_back
            case LossCounted():
                self.lost += change.count
                self.lost_below = max(self.lost_below, change.below)

    def overtaken(self, start: int) -> list[Range]:
        """Return the losses that are not counted yet, for a log that begins at `start`."""
        ranges: list[Range] = self.marks.gaps(max(self.marks.floor, self.lost_below), start)
        return ranges

    def exists(self) -> bool:
        """Return whether the cursor is present."""
        return self.present

    def encode(self) -> bytes:
        """Encode the record, with the marks as ranges; most cursors have lost nothing."""
        marks: AcknowledgedRanges = self.marks
        fields = [self.lsn, self.durable, self.section, marks.floor, marks.ranges(), self.set_back]
        if self.lost or self.lost_below:
            fields += (self.lost, self.lost_below)
        return msgspec.msgpack.encode(fields)

    @classmethod
    def blank(cls) -> Self:
        """Return a cursor that does not exist."""
        return cls(marks=AcknowledgedRanges())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a record."""
        stored = _decode(data)
        return cls(
            stored.lsn,
            True,
            stored.durable,
            stored.section,
            AcknowledgedRanges(stored.floor, stored.ranges),
            stored.set_back,
            stored.lost,
            stored.lost_below,
        )
