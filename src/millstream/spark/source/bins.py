"""Bins: what one task reads, ranges of as many logs as it takes to be worth a task.

All ranges are laid end to end and cut into bins of about the same weight. A range weighs its bytes
or its records, whichever is more; a large one is cut, small ones share a bin. So the number of tasks
follows from how much there is to read, whatever the number of logs.
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
"""Records that one task reads at most, where they are small."""

RANGES_PER_BIN = 2_000
"""Ranges that one task reads, however small they are: each costs a look of its own."""

BINS_MAX = 10_000
"""Tasks that Spark can still plan."""


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
    """How large bins are to be."""

    least: int | None = None
    """How many there are at least, if that was asked for."""
    records_max: int | None = None
    """Records of one bin at most, if that was asked for."""
    records: int = RECORDS_PER_BIN
    """Records of one bin, if nothing was asked for."""


def bins(ranges: Sequence[R], bytes_of: Callable[[R], int], sizes: BinSizes) -> list[Bin[R]]:
    """Ranges as bins of about the same weight, in order."""
    records = list(map(len, ranges))
    total = sum(records)
    if not total:
        return []
    floor = BYTES_PER_BIN // RANGES_PER_BIN
    weights = [
        max(count * BYTES_PER_BIN // sizes.records, bytes_of(one), floor)
        for one, count in zip(ranges, records, strict=True)
    ]
    count = min(total, BINS_MAX, sizes.least or -(-sum(weights) // BYTES_PER_BIN))
    if sizes.records_max is None:
        found = _cut(ranges, weights, count)
        # Edges that fall between two records of a large weight can leave a bin empty.
        return found if len(found) >= (sizes.least or 0) else _cut(ranges, records, count)
    needed = -(-total // sizes.records_max)
    if needed > BINS_MAX:
        raise InvalidInput(
            f"option maxRecordsPerPartition: {sizes.records_max:,} records each make {needed:,} "
            f"tasks of {total:,} records, and at most {BINS_MAX:,} can be planned; raise it"
        )
    return _cut(ranges, records, max(count, needed))


def _cut(ranges: Sequence[R], weights: Sequence[int], count: int) -> list[Bin[R]]:
    """Ranges, laid end to end, cut at so many places of the same distance."""
    total = sum(weights)
    edges = [total * i // count for i in range(1, count + 1)]
    found: list[list[R]] = [[]]
    at = 0
    for one, weight, end in zip(ranges, weights, accumulate(weights), strict=True):
        start = one.start
        while at < count - 1 and edges[at] <= end:
            stop = one.start + len(one) * (edges[at] - (end - weight)) // weight
            if start < stop:
                found[-1].append(replace(one, start=start, stop=stop))
                start = stop
            found.append([])
            at += 1
        if start < one.stop:
            found[-1].append(one if start == one.start else replace(one, start=start))
    return [tuple(some) for some in found if some]
