"""Bins: the ranges of logs that a task reads.

`bins` lays all ranges end to end and cuts them into bins of about equal weight. The weight of a
range is the larger of its bytes and its records. A large range is cut, small ranges share a bin. So
the number of tasks follows from the amount to read and not from the number of logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from millstream.errors import InvalidInput

BYTES_PER_BIN = 128 * 1024 * 1024
RECORDS_PER_BIN = 250_000
"""The most small records that a task reads."""

RANGES_PER_BIN = 2_000
"""The most ranges that a task reads, however small: the task asks the store once for each range."""

BINS_MAX = 10_000
"""The most tasks that Spark can plan."""


class Range(Struct, frozen=True):
    """Some offsets of a log, half-open."""

    log: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


R = TypeVar("R", bound=Range)
Bin = tuple[R, ...]


class BinSizes(Struct, frozen=True, kw_only=True):
    """The sizes that bins should have."""

    bins_min: int | None = None
    """The smallest number of bins, if the user set the option `minPartitions`."""
    records_max: int | None = None
    """The most records in a bin, if the user set the option `maxRecordsPerPartition`."""
    records: int = RECORDS_PER_BIN
    """Records in a bin without either option."""


def bins(ranges: Sequence[R], bytes_of: Callable[[R], int], sizes: BinSizes) -> list[Bin[R]]:
    """Return the ranges as bins of about equal weight, in order."""
    records = list(map(len, ranges))
    total = sum(records)
    if not total:
        return []
    floor = BYTES_PER_BIN // RANGES_PER_BIN
    weights = [
        max(count * BYTES_PER_BIN // sizes.records, bytes_of(range_), floor)
        for range_, count in zip(ranges, records, strict=True)
    ]
    count = min(total, BINS_MAX, sizes.bins_min or -(-sum(weights) // BYTES_PER_BIN))
    if sizes.records_max is None:
        by_weight = _cut(ranges, weights, count)
        # Edges that fall between two records of a large weight can leave a bin empty.
        return (
            by_weight if len(by_weight) >= (sizes.bins_min or 0) else _cut(ranges, records, count)
        )
    needed = -(-total // sizes.records_max)
    if needed > BINS_MAX:
        raise InvalidInput(
            f"option maxRecordsPerPartition: {sizes.records_max:,} records each make {needed:,} "
            f"tasks of {total:,} records, and at most {BINS_MAX:,} can be planned; raise it"
        )
    return _cut(ranges, records, max(count, needed))


def _cut(ranges: Sequence[R], weights: Sequence[int], count: int) -> list[Bin[R]]:
    """Cut the ranges, laid end to end, at `count` equal distances."""
    total = sum(weights)
    edges = [total * i // count for i in range(1, count + 1)]
    cut_bins: list[list[R]] = [[]]
    at = 0
    for range_, weight, end in zip(ranges, weights, accumulate(weights), strict=True):
        start = range_.start
        while at < count - 1 and edges[at] <= end:
            stop = range_.start + len(range_) * (edges[at] - (end - weight)) // weight
            if start < stop:
                cut_bins[-1].append(replace(range_, start=start, stop=stop))
                start = stop
            cut_bins.append([])
            at += 1
        if start < range_.stop:
            cut_bins[-1].append(range_ if start == range_.start else replace(range_, start=start))
    return [tuple(ranges_in_bin) for ranges_in_bin in cut_bins if ranges_in_bin]
