"""Partitioned logs in Spark: a task for each partition, and rows spread over partitions by key."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Self, TypeVar

from millstream.errors import CannotOpen
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.log.partitioner import Spreader
from millstream.partitioning import partition_name, partition_of
from millstream.spark.place import Place, reading
from millstream.spark.source.bins import Bin, BinSizes, Range, bins

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.command import Session

R = TypeVar("R", bound=Range)

TASKS_MAX = 256
"""The most partitions that get separate tasks; with more partitions, several share a task."""

_turns = count(random.randrange(TASKS_MAX))
"""The partition of the next rows without a key: the tasks of a process take partitions in turn."""


def bins_by_partition(
    ranges: Sequence[R], bytes_of: Callable[[R], int], sizes: BinSizes
) -> list[Bin[R]]:
    """Return ranges as bins; a partition shares no bin, unless options set the sizes of bins."""
    by_partition: dict[str, list[R]] = {}
    unpartitioned: list[R] = []
    for range_ in ranges:
        if partition_of(range_.log) is None:
            unpartitioned.append(range_)
        else:
            by_partition.setdefault(range_.log, []).append(range_)
    if not by_partition or sizes.bins_min or sizes.records_max or len(by_partition) > TASKS_MAX:
        return bins(ranges, bytes_of, sizes)
    all_bins = bins(unpartitioned, bytes_of, sizes)
    for partition_ranges in by_partition.values():
        all_bins += bins(partition_ranges, bytes_of, sizes)
    return all_bins


class RowSpreader:
    """Spreads rows of partitioned logs over their partitions by key.

    The spreader looks up the number of partitions of each log once. It holds the store open: close
    it, or use `with`.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: dict[str, int] = {}
        self._session: Session | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._session = None
        self._open.close()

    def count(self, log: str) -> int:
        """Return the number of partitions of a log; 0 without partitions, or without a store."""
        if log not in self._known:
            try:
                session = self._session or self._open.enter_context(reading(self._place))
            except CannotOpen:
                return 0
            self._session = session
            self._known[log] = len(session.execute(c.DescribePartitions(log)))
        return self._known[log]

    def spread(self, log: str, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield partitions with their rows in order; a log without partitions keeps its rows."""
        partitions = self.count(log)
        if not partitions:
            yield log, rows
            return
        import pyarrow as pa
        import pyarrow.compute as pc

        spreader, limits = Spreader(log, partitions), Limits()
        turn = next(_turns) % partitions
        keys = rows.column("key").to_pylist() if "key" in rows.schema.names else []
        targets = pa.array(
            [turn if key is None else spreader.of_key(key, limits) for key in keys]
            or [turn] * rows.num_rows,
            pa.int32(),
        )
        for number in targets.unique().to_pylist():
            chosen = rows.filter(pc.equal(targets, number))
            yield partition_name(log, number), chosen
