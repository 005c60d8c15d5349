"""Acknowledged positions: a floor, and ranges above the floor.

All positions below the floor are acknowledged. Ranges are half-open, sorted and disjoint. When the gap
below the first range is filled, the floor moves to the end of that range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Range = tuple[int, int]


class AcknowledgedRanges:
    """A set of positions that mostly grows from below."""

    __slots__ = ("_starts", "_stops", "floor")

    def __init__(self, floor: int = 0, ranges: Iterable[Range] = ()) -> None:
        self.floor = floor
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            self.add(start, stop)

    def __copy__(self) -> AcknowledgedRanges:
        return self.with_added(())

    def __contains__(self, position: int) -> bool:
        if position < self.floor:
            return True
        at = bisect_right(self._starts, position)
        return at > 0 and position < self._stops[at - 1]

    def add(self, start: int, stop: int) -> None:
        """Acknowledge start <= position < stop."""
        start = max(start, self.floor)
        if stop <= start:
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        self._settle()

    def raise_floor(self, floor: int) -> None:
        """Acknowledge all positions below; a lower floor changes nothing."""
        if floor <= self.floor:
            return
        self.floor = floor
        at = bisect_right(self._stops, floor)
        del self._starts[:at]
        del self._stops[:at]
        self._settle()

    def cut(self, at: int) -> None:
        """Forget every acknowledgement at or above a position."""
        self.floor = min(self.floor, at)
        kept_count = bisect_left(self._starts, at)
        del self._starts[kept_count:]
        del self._stops[kept_count:]
        if kept_count and self._stops[-1] > at:
            self._stops[-1] = at

    def highest(self) -> int:
        """Return the position after the last acknowledged position."""
        return self._stops[-1] if self._stops else self.floor

    def next_gap(self, position: int) -> Range:
        """Return the next unacknowledged range at or after a position; a stop of -1 means no end."""
        position = max(position, self.floor)
        at = bisect_right(self._starts, position)
        if at > 0 and position < self._stops[at - 1]:
            position = self._stops[at - 1]
        return position, self._starts[at] if at < len(self._starts) else -1

    def gaps(self, start: int, stop: int) -> list[Range]:
        """Return the unacknowledged ranges within [start, stop)."""
        ranges: list[Range] = []
        while start < stop:
            first, behind = self.next_gap(start)
            if first >= stop:
                break
            start = stop if behind < 0 else min(behind, stop)
            ranges.append((first, start))
        return ranges

    def ranges(self) -> list[Range]:
        """Return the acknowledged ranges above the floor."""
        return list(zip(self._starts, self._stops, strict=True))

    def count(self) -> int:
        """Return the number of ranges above the floor."""
        return len(self._starts)

    def with_added(self, ranges: Iterable[Range]) -> AcknowledgedRanges:
        """Return a copy with additional acknowledged ranges."""
        copy = AcknowledgedRanges(self.floor)
        copy._starts, copy._stops = self._starts.copy(), self._stops.copy()
        for start, stop in ranges:
            copy.add(start, stop)
        return copy

    def _settle(self) -> None:
        """Move the floor over a first range that touches the floor."""
        if self._starts and self._starts[0] <= self.floor:
            self.floor = max(self.floor, self._stops[0])
            del self._starts[0]
            del self._stops[0]


def joined(positions: Iterable[int]) -> list[Range]:
    """Return the fewest ranges that cover single positions."""
    ranges: list[Range] = []
    for position in sorted(set(positions)):
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return ranges


def common(ranges: list[Range], covering: Iterable[Range]) -> list[Range]:
    """Return the offsets that disjoint ascending ranges share with other ranges, as ranges."""
    marks = AcknowledgedRanges(0, covering)
    covered = [(0, marks.floor), *marks.ranges()]
    shared: list[Range] = []
    at = covered_at = 0
    while at < len(ranges) and covered_at < len(covered):
        (start, stop), (low, high) = ranges[at], covered[covered_at]
        if max(start, low) < min(stop, high):
            shared.append((max(start, low), min(stop, high)))
        if stop <= high:
            at += 1
        else:
            covered_at += 1
    return shared
