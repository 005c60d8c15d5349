"""What the store keeps of a cursor: its floor and what is acknowledged above it."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct

from millstream.log.model.marks import Marks, Range
from millstream.store.state.entity import Entity


class CursorOpened(Struct, array_like=True, frozen=True, tag=1):
    """The cursor exists from now on."""

    floor: int
    section: int
    durable: bool


class Acked(Struct, array_like=True, frozen=True, tag=2):
    """Ranges were acknowledged."""

    ranges: list[Range]


class FloorMoved(Struct, array_like=True, frozen=True, tag=3):
    """The floor was set, forwards or backwards; what was acknowledged above it is forgotten."""

    floor: int


class AcksSetBack(Struct, array_like=True, frozen=True, tag=4):
    """Other records lie from `at` on now: acknowledgements at or above it are dropped."""

    at: int


_decode = msgspec.msgpack.Decoder(tuple[int, bool, int, int, list[Range], int]).decode
"""Of a record: its sequence, `durable`, `section`, the floor and the ranges above it, `set_back`."""


class CursorState(Entity):
    """One cursor. Its marks are a structure of their own, so that an acknowledgement costs the
    same however many lie above the floor; they become plain ranges only in the record."""

    present: bool = False
    durable: bool = True
    section: int = 0
    marks: Any = None
    set_back: int = 0
    """How often records that it had passed were set aside."""

    changes: ClassVar = CursorOpened | Acked | FloorMoved | AcksSetBack

    def apply(self, change: CursorOpened | Acked | FloorMoved | AcksSetBack) -> None:
        """Move to the next state."""
        match change:
            case Acked():
                for start, stop in change.ranges:
                    self.marks.add(start, stop)
            case FloorMoved():
                self.marks = Marks(change.floor)
            case CursorOpened():
                self.present = True
                self.marks = Marks(change.floor)
                self.section, self.durable = change.section, change.durable
            case AcksSetBack():
                self.marks.cut(change.at)
                self.set_back += 1

    def exists(self) -> bool:
        """A removed cursor has no record."""
        return self.present

    def encode(self) -> bytes:
        """The record, with the marks as ranges."""
        marks: Marks = self.marks
        return msgspec.msgpack.encode(
            (self.lsn, self.durable, self.section, marks.floor, marks.ranges(), self.set_back)
        )

    @classmethod
    def blank(cls) -> Self:
        """A cursor that does not exist."""
        return cls(marks=Marks())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read it from the bytes of its record."""
        lsn, durable, section, floor, ranges, set_back = _decode(data)
        return cls(lsn, True, durable, section, Marks(floor, ranges), set_back)
