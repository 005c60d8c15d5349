"""Logs with partitions, as Spark has them: a task for each partition, and rows that go to theirs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Self, TypeVar

from millstream.errors import CannotOpen
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.log.spreading import Spreader
from millstream.partitioning import partition_name, partition_of
from millstream.spark.place import Place, reading
from millstream.spark.source.bins import Bin, BinSizes, Range, bins

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.command import Session

R = TypeVar("R", bound=Range)

TASKS_MAX = 256
"""Partitions that get tasks of their own; of more, some share one, as small logs do."""

_turns = count(random.randrange(TASKS_MAX))
"""Which partition the next rows without a key go to: those of tasks in one process take turns."""


def bins_by_partition(
    ranges: Sequence[R], bytes_of: Callable[[R], int], sizes: BinSizes
) -> list[Bin[R]]:
    """Ranges as bins; a partition of a log shares none, unless the sizes of bins are asked for."""
    own: dict[str, list[R]] = {}
    rest: list[R] = []
    for one in ranges:
        if partition_of(one.log) is None:
            rest.append(one)
        else:
            own.setdefault(one.log, []).append(one)
    if not own or sizes.least or sizes.records_max or len(own) > TASKS_MAX:
        return bins(ranges, bytes_of, sizes)
    found = bins(rest, bytes_of, sizes)
    for some in own.values():
        found += bins(some, bytes_of, sizes)
    return found


class RowSpreader:
    """Rows of logs with partitions go to those by their keys; how many there are is looked up once.

    Close it, or use `with`: it holds the store open.
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
        """How many partitions a log has; 0 for none, also if there is no store yet."""
        if log not in self._known:
            try:
                session = self._session or self._open.enter_context(reading(self._place))
            except CannotOpen:
                return 0
            self._session = session
            self._known[log] = len(session.execute(c.DescribePartitions(log)))
        return self._known[log]

    def spread(self, log: str, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each partition, in their order; all, if the log has none."""
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
