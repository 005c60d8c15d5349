"""Coverage: which offsets of a log are sound, as few ranges."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.log.model.acknowledged import AcknowledgedRanges, Range


class Coverage(AcknowledgedRanges):
    """Ranges of offsets with an entry and a payload."""

    __slots__ = ()

    def up_to(self, stop: int) -> Iterator[Range]:
        """The sound ranges below an offset."""
        for start, end in [(0, self.floor), *self.ranges()]:
            if start < min(end, stop):
                yield start, min(end, stop)

    def missing(self, start: int, stop: int) -> Iterator[Range]:
        """The parts of [start, stop) that are not sound."""
        while start < stop:
            first, end = self.next_gap(start)
            start = stop if end < 0 else min(end, stop)
            if first < start:
                yield first, start
