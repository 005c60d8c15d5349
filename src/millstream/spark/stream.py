"""Streams of logs, as Spark asks for them: which offsets come next, and how far it has come.

A position is one offset per log, the first that was not read. Logs that appear later, by a pattern
or because they were only named, are read from their beginning. A cursor that follows a stream is a
watermark: what lies before it was processed. It moves when the next batch is planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millstream.log import commands as c
from millstream.record import LogInfo
from millstream.spark.failures import point
from millstream.spark.layout import arrow_schema, check_schema
from millstream.spark.options import ReadOptions
from millstream.spark.place import open_session
from millstream.spark.planning import (
    Range,
    check_named,
    checked_start,
    find_logs,
    lost,
    split,
    starting_offset,
)
from millstream.spark.reading import read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from millstream.command import Session

Position = dict[str, int]
RECORDS_PER_PARTITION = 50_000
"""A batch is waited for: it is read by more tasks than as many records of a batch read would be."""

CURSOR_SECTION = 1
"""A cursor that follows a stream only has a floor: what lies between is not acknowledged."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as they grow."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._target: Position | None = None
        self._session: Session | None = None
        self._followed: set[str] = set()
        self._floors: Position = {}

    # Planning, on the driver.

    def initialOffset(self) -> Position:  # noqa: N802
        """Where a new query begins."""
        options = self._options
        session = self._open()
        infos = find_logs(session, options)
        check_named(options.starting, {*infos, *options.logs}, "startingOffsets")
        found = {name: starting_offset(session, info, options) for name, info in infos.items()}
        self._follow(found)
        return found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a batch takes."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        """Where the next batch ends."""
        point("planning")
        self.commit(start)  # Spark plans a batch once the one before it is done
        infos = find_logs(self._open(), self._options)
        ends = self._ends(infos)
        starts = {name: self._start(start, infos[name]) for name in ends}
        self._follow({name: at for name, at in starts.items() if name not in start})
        backlog = {name: max(0, end - starts[name]) for name, end in ends.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        taken = shares(backlog, most)
        # A log that is gone stays where it was: it may come back.
        return {**start, **{name: starts[name] + taken[name] for name in ends}}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where a query that only takes what is there ends."""
        self._target = self.reportLatestOffset()

    def reportLatestOffset(self) -> Position:  # noqa: N802
        """How far the logs go now, for progress reports."""
        infos = find_logs(self._open(), self._options)
        return {name: info.end_offset for name, info in infos.items()}

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        """The pieces of one batch."""
        infos = find_logs(self._open(), self._options)
        ranges = []
        for name, stop in end.items():
            if stop == start.get(name):
                continue
            info = infos.get(name)
            if info is None:
                if self._options.fail_on_data_loss:
                    raise lost(name, stop, 0, 0, "the checkpoint")
                continue
            first = self._start(start, info)
            if stop > info.end_offset and self._options.fail_on_data_loss:
                raise lost(name, stop, info.start_offset, info.end_offset, "the checkpoint")
            if first < min(stop, info.end_offset):
                ranges.append(Range(name, first, min(stop, info.end_offset)))
        least = self._options.min_partitions
        pieces = split(ranges, infos, least, records=RECORDS_PER_PARTITION)
        return [InputPartition(one) for one in pieces]

    def commit(self, end: Position) -> None:
        """Everything before was processed: move the cursor there."""
        cursor = self._options.cursor
        if not cursor:
            return
        session = self._open()
        for name, floor in end.items():
            if self._floors.get(name) == floor:
                continue
            if floor <= session.execute(c.GetBounds(name))[1]:  # else it was made anew
                self._follow({name: floor})
                session.execute(c.MoveCursor(name, cursor, floor, forward=True))
                self._floors[name] = floor

    def stop(self) -> None:
        """Let go of the store."""
        if self._session is not None:
            self._session.close()
            self._session = None

    # Reading, in a task.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One piece, as record batches."""
        return read_range(self._options, partition.value, arrow_schema(self._schema))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def _open(self) -> Session:
        if self._session is None:
            follows = bool(self._options.cursor)
            self._session = open_session(self._options.place, read_only=not follows)
        return self._session

    def _ends(self, infos: dict[str, LogInfo]) -> Position:
        if self._target is None:
            return {name: info.end_offset for name, info in infos.items()}
        return {name: end for name, end in self._target.items() if name in infos}

    def _start(self, start: Position, info: LogInfo) -> int:
        """Where a batch begins in a log: where the last one ended, if that is still there."""
        at = start.get(info.name)
        if at is None:
            return info.start_offset
        if at > info.end_offset and not self._options.fail_on_data_loss:
            return info.start_offset  # another log of the same name
        return checked_start(info, at, self._options, "the checkpoint")

    def _follow(self, positions: Position) -> None:
        """Make the cursors that are not there yet, so that retention waits for them."""
        cursor = self._options.cursor
        if not cursor:
            return
        for name, at in positions.items():
            if name not in self._followed:
                command = c.OpenCursor(name, cursor, at, CURSOR_SECTION, durable=True)
                self._open().execute(command)
                self._followed.add(name)


def shares(backlog: dict[str, int], most: int | None) -> dict[str, int]:
    """How many records of each log a batch takes: in proportion, and some of each if it can be."""
    total = sum(backlog.values())
    if most is None or total <= most:
        return backlog
    found = {name: size * most // total for name, size in backlog.items()}
    for name, size in backlog.items():
        if size and not found[name] and sum(found.values()) < most:
            found[name] = 1
    left = most - sum(found.values())
    for name, size in backlog.items():
        more = min(left, size - found[name])
        found[name] += more
        left -= more
    return found
