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


_decode = msgspec.msgpack.Decoder(tuple[int, bool, int, int, list[Range], int]).decode
"""Decodes sequence, `durable`, `section`, floor, ranges and `set_back` from a record."""


class CursorState(Entity):
    """A cursor. In memory its marks are `AcknowledgedRanges`, so that the cost of an acknowledgement does not grow
    with the number of ranges; the record stores plain ranges."""

    present: bool = False
    durable: bool = True
    section: int = 0
    marks: Any = None
    set_back: int = 0
    """Counts the times that records behind the cursor were set aside."""

    changes: ClassVar = CursorOpened | Acked | FloorMoved | CursorTaken

    def apply(self, change: CursorOpened | Acked | FloorMoved | CursorTaken) -> None:
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

    def exists(self) -> bool:
        """Return whether the cursor is present."""
        return self.present

    def encode(self) -> bytes:
        """Encode the record, with the marks as ranges."""
        marks: AcknowledgedRanges = self.marks
        return msgspec.msgpack.encode(
            (self.lsn, self.durable, self.section, marks.floor, marks.ranges(), self.set_back)
        )

    @classmethod
    def blank(cls) -> Self:
        """Return a cursor that does not exist."""
        return cls(marks=AcknowledgedRanges())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a record."""
        lsn, durable, section, floor, ranges, set_back = _decode(data)
        return cls(lsn, True, durable, section, AcknowledgedRanges(floor, ranges), set_back)
