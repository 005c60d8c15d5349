"""Coverage: which offsets of a log are sound, as few ranges; they are added by where they stop."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class Coverage:
    """Ranges of offsets that have their entry and their payload."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        """Note sound offsets, which stop at or behind those that were added before."""
        while self._stops and start <= self._stops[-1]:
            stop = max(stop, self._stops.pop())
            start = min(start, self._starts.pop())
        self._starts.append(start)
        self._stops.append(stop)

    def up_to(self, stop: int) -> Iterator[tuple[int, int]]:
        """The sound ranges below an offset."""
        for start, end in zip(self._starts, self._stops, strict=True):
            if start < stop:
                yield start, min(end, stop)

    def missing(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, stop) that are not sound."""
        at = bisect_right(self._starts, start) - 1
        while start < stop:
            if at >= 0:
                start = max(start, self._stops[at])
            end = self._starts[at + 1] if at + 1 < len(self._starts) else stop
            if start < min(stop, end):
                yield start, min(stop, end)
            start, at = max(start, min(stop, end)), at + 1
