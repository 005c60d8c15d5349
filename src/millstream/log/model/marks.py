"""Acknowledged ranges: which positions are acknowledged. A floor, and ranges above it.

Everything below the floor is acknowledged. Ranges are half-open, sorted, apart from each other and
from the floor; when the gap below the first one is filled, the floor moves over it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Range = tuple[int, int]


class Marks:
    """A set of positions that mostly grows from below."""

    __slots__ = ("_starts", "_stops", "floor")

    def __init__(self, floor: int = 0, ranges: Iterable[Range] = ()) -> None:
        self.floor = floor
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            self.add(start, stop)

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
        """Acknowledge everything below; a lower floor changes nothing."""
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
        kept = bisect_left(self._starts, at)
        del self._starts[kept:]
        del self._stops[kept:]
        if kept and self._stops[-1] > at:
            self._stops[-1] = at

    def highest(self) -> int:
        """Nothing at or above is acknowledged."""
        return self._stops[-1] if self._stops else self.floor

    def next_gap(self, position: int) -> Range:
        """The next unacknowledged run at or after a position: [start, stop); stop -1 is no end."""
        position = max(position, self.floor)
        at = bisect_right(self._starts, position)
        if at > 0 and position < self._stops[at - 1]:
            position = self._stops[at - 1]
        return position, self._starts[at] if at < len(self._starts) else -1

    def gaps(self, start: int, stop: int) -> list[Range]:
        """The unacknowledged ranges within [start, stop)."""
        found: list[Range] = []
        while start < stop:
            first, behind = self.next_gap(start)
            if first >= stop:
                break
            start = stop if behind < 0 else min(behind, stop)
            found.append((first, start))
        return found

    def ranges(self) -> list[Range]:
        """The acknowledged ranges above the floor."""
        return list(zip(self._starts, self._stops, strict=True))

    def count(self) -> int:
        """How many ranges lie above the floor."""
        return len(self._starts)

    def with_added(self, ranges: Iterable[Range]) -> Marks:
        """A copy in which these ranges are acknowledged as well."""
        copy = Marks(self.floor)
        copy._starts, copy._stops = self._starts.copy(), self._stops.copy()
        for start, stop in ranges:
            copy.add(start, stop)
        return copy

    def _settle(self) -> None:
        """Let the floor swallow a first range that it touches."""
        if self._starts and self._starts[0] <= self.floor:
            self.floor = max(self.floor, self._stops[0])
            del self._starts[0]
            del self._stops[0]


def joined(positions: Iterable[int]) -> list[Range]:
    """Single positions as the fewest ranges."""
    ranges: list[Range] = []
    for position in sorted(set(positions)):
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return ranges
