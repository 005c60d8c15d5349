"""Progress: what a reader holds in memory, the position and the marks; without any I/O.

This is the part of a cursor that is the same for every surface: which record comes next, what an
acknowledgement means, how far a flush may go.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.errors import InvalidInput, OutOfRange
from millstream.log.marks import Marks, Range, joined
from millstream.record import CursorInfo, Record

Acknowledged = Record | int | Iterable["Record | int"]


class Progress:
    """A position and marks that start where the stored cursor stands."""

    __slots__ = ("marks", "position", "section")

    def __init__(self, info: CursorInfo) -> None:
        self.marks = Marks(info.floor, info.ranges)
        self.position = info.floor
        self.section = info.section

    def next_gap(self, start: int, end: int) -> Range:
        """The next run of unacknowledged offsets that can be read: [from, to)."""
        first, stop = self.marks.next_gap(max(self.position, start))
        return first, end if stop < 0 else min(stop, end)

    def acked(self, ranges: Iterable[Range]) -> None:
        """Mark ranges."""
        for first, stop in ranges:
            self.marks.add(first, stop)

    def moved(self, floor: int) -> None:
        """Start over at a floor."""
        self.marks = Marks(floor)
        self.position = floor

    def flushable(self) -> int:
        """The last section boundary at or below the floor."""
        return self.marks.floor // self.section * self.section


def ranges_of(records: Acknowledged) -> list[Range]:
    """What is to be acknowledged, as ranges: a record, an offset, or several."""
    if isinstance(records, Record | int):
        records = [records]
    return joined(one.offset if isinstance(one, Record) else _offset(one) for one in records)


def check_within(ranges: Iterable[Range], end: int) -> None:
    """Every position must be below the end."""
    for _, stop in ranges:
        if stop > end:
            raise OutOfRange(
                f"position {stop - 1} is past the end, {end}", position=stop - 1, end=end
            )


def _offset(value: object) -> int:
    if type(value) is not int or value < 0:
        raise InvalidInput(f"an acknowledgement names records or offsets, not {value!r}")
    return value
