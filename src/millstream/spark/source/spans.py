"""Spans of time: what a query says about the times of records, compared with whole blocks.

The wall clock may have gone back between two blocks, so no search over a log could find the first
record of a span. The times of each block are compared instead; values are read for matching records.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from millstream.format import block as stored
from millstream.spark.source.columns import DecodedBlock, times_of

COLUMNS = {"timestamp": stored.TIMESTAMP, "appendTimestamp": stored.APPENDED}
"""The columns that hold times."""


class TimeSpan(Struct, frozen=True):
    """A comparison of a column with a time in microseconds."""

    column: str
    sign: str
    micros: int

    def may_hold(self, low: int, high: int) -> bool:
        """Return whether a time from `low` to `high` can fulfil the comparison."""
        match self.sign:
            case "<":
                return low < self.micros
            case "<=":
                return low <= self.micros
            case ">":
                return high > self.micros
            case ">=":
                return high >= self.micros
        return low <= self.micros <= high


TimeSpans = Sequence[TimeSpan]


def may_hold(piece: DecodedBlock, spans: TimeSpans) -> bool:
    """Return whether a record of the block can lie in all spans."""
    for span in spans:
        times = times_of(piece, COLUMNS[span.column]).to_numpy()
        if not span.may_hold(int(times.min()), int(times.max())):
            return False
    return True
