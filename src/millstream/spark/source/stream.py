"""Streams of logs, as Spark asks for them: which offsets come next, and how far it has come.

Logs that appear later, by a pattern or because they were only named, are read from their beginning.
A cursor that follows a stream is a watermark: what lies before it was processed. It moves when the
next batch is planned.

A position has the id of each log beside its offset. A log of the same name with another id was made
anew: it ends the stream, or is read from its beginning with failOnDataLoss=false.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from millstream.clock import SystemClock
from millstream.record import LogInfo
from millstream.spark.failures import point
from millstream.spark.options import ReadOptions
from millstream.spark.partitions import bins_by_partition
from millstream.spark.place import open_session
from millstream.spark.source.bins import BinSizes, Range
from millstream.spark.source.cursors import StreamCursors
from millstream.spark.source.layout import arrow_schema, check_schema
from millstream.spark.source.planning import (
    bytes_of,
    check_named,
    checked_start,
    find_logs,
    lost,
    made_anew,
    starting_offset,
)
from millstream.spark.source.positions import LogIds, Position, ids_in, packed, reported, unpacked
from millstream.spark.source.task import read_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from millstream.command import Session

Stored = dict[str, Any]
"""A position as Spark stores it."""

RECORDS_PER_BIN = 50_000
"""A batch is waited for: it is read by more tasks than as many records of a batch read would be."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as they grow."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._target: Position | None = None
        self._session: Session | None = None
        self._follower = StreamCursors(options.cursor)
        self._infos: dict[str, LogInfo] = {}
        """The logs as they were when the last batch was planned."""
        self._planned: Position = {}
        """Where the last batch ends."""
        self._clock = SystemClock()
        self._triggered_s: float | None = None
        """When a batch was last let through."""

    # Planning, on the driver.

    def initialOffset(self) -> Stored:  # noqa: N802
        """Where a new query begins."""
        options = self._options
        session, infos = self._open(), self._look()
        check_named(options.starting, {*infos, *options.logs}, "startingOffsets")
        found = {name: starting_offset(session, info, options) for name, info in infos.items()}
        self._follower.make(session, found)
        return packed(found, _ids(infos))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a batch takes; Spark knows one bound at a time, and we all of them."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        least = options.min_offsets
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def latestOffset(self, start: Stored, limit: ReadLimit) -> Stored:  # noqa: N802
        """Where the next batch ends."""
        point("planning")
        infos = self._look()
        self.commit(start)  # Spark plans a batch once the one before it is done
        began, known = unpacked(start), ids_in(start)
        ends = self._ends(infos)
        starts = {name: self._start(began, known, infos[name]) for name in ends}
        new = {n: at for n, at in starts.items() if n not in began or _is_new(known, infos[n])}
        self._follower.forget(set(new) & set(began))
        self._follower.make(self._open(), new)
        backlog = {name: max(0, end - starts[name]) for name, end in ends.items()}
        is_bounded = not isinstance(limit, ReadAllAvailable)
        if is_bounded and self._waits(sum(backlog.values())):
            return start
        taken = shares(backlog, self._most(limit, backlog, infos) if is_bounded else None)
        # A log that is gone stays where it was: it may come back.
        self._planned = {**began, **{name: starts[name] + taken[name] for name in ends}}
        if self._planned == began and not any(_is_new(known, infos[name]) for name in ends):
            return start  # also one without ids, of an older version: there is nothing to do
        return packed(self._planned, {**known, **_ids(infos)})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where a query that only takes what is there ends."""
        self._target = {name: info.end_offset for name, info in self._look().items()}

    def reportLatestOffset(self) -> Stored:  # noqa: N802
        """How far the logs go now, and how far behind the stream is, for progress reports."""
        latest = {name: info.end_offset for name, info in self._look().items()}
        return reported(latest, self._planned)

    def partitions(self, start: Stored, end: Stored) -> Sequence[InputPartition]:
        """The bins of one batch."""
        options, began, known = self._options, unpacked(start), ids_in(start)
        infos = self._infos or self._look()
        ranges, planned = [], ids_in(end)
        for name, stop in unpacked(end).items():
            if stop == began.get(name) and planned.get(name) == known.get(name, planned.get(name)):
                continue
            info = infos.get(name)
            if info is None:
                if options.fail_on_data_loss:
                    raise lost(name, stop, 0, 0, "the checkpoint")
                continue
            if _is_new(planned, info):
                if options.fail_on_data_loss:
                    raise made_anew(info, planned[name], stop, "the checkpoint")
                continue  # what was planned is gone; the next batch begins with the new log
            first = self._start(began, known, info)
            if stop > info.end_offset and options.fail_on_data_loss:
                raise lost(name, stop, info.start_offset, info.end_offset, "the checkpoint")
            if first < min(stop, info.end_offset):
                ranges.append(Range(name, first, min(stop, info.end_offset)))
        sizes = BinSizes(
            least=options.min_partitions, records_max=options.max_records, records=RECORDS_PER_BIN
        )
        found = bins_by_partition(ranges, lambda one: bytes_of(one, infos[one.log]), sizes)
        return [InputPartition(one) for one in found]

    def commit(self, end: Stored) -> None:
        """Everything before was processed: move the cursors there."""
        if not self._options.cursor:
            return
        infos, known = self._infos or self._look(), ids_in(end)
        there = {
            name: floor
            for name, floor in unpacked(end).items()
            if name in infos and not _is_new(known, infos[name]) and floor <= infos[name].end_offset
        }
        self._follower.move(self._open(), there)

    def stop(self) -> None:
        """Let go of the store."""
        if self._session is not None:
            self._session.close()
            self._session = None

    # Reading, in a task.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One piece, as record batches."""
        return read_ranges(self._options, partition.value, arrow_schema(self._schema))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None, "_infos": {}, "_planned": {}}

    def _waits(self, backlog: int) -> bool:
        """Whether there is too little for a batch yet; what is there by now is all it gets later."""
        least, now_s = self._options.min_offsets, self._clock.seconds()
        last_s = self._triggered_s
        is_late = last_s is None or now_s - last_s >= self._options.delay_ms / 1000
        if least is not None and backlog < least and not is_late and self._target is None:
            return True
        if backlog:
            self._triggered_s = now_s
        return False

    def _most(self, limit: ReadLimit, backlog: Position, infos: dict[str, LogInfo]) -> int | None:
        """How many records a batch takes at most, by their number and by their bytes."""
        most, bytes_max = self._options.max_offsets, self._options.max_bytes
        if isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        if bytes_max is None:
            return most
        ranges = [Range(name, 0, count) for name, count in backlog.items() if count]
        size = sum(bytes_of(one, infos[one.log]) for one in ranges)
        fitting = max(1, bytes_max * sum(map(len, ranges)) // max(1, size))
        return fitting if most is None else min(most, fitting)

    def _look(self) -> dict[str, LogInfo]:
        """The logs as they are now."""
        self._infos = find_logs(self._open(), self._options)
        return self._infos

    def _open(self) -> Session:
        if self._session is None:
            follows = bool(self._options.cursor)
            self._session = open_session(self._options.place, read_only=not follows)
        return self._session

    def _ends(self, infos: dict[str, LogInfo]) -> Position:
        if self._target is None:
            return {name: info.end_offset for name, info in infos.items()}
        return {name: end for name, end in self._target.items() if name in infos}

    def _start(self, start: Position, known: LogIds, info: LogInfo) -> int:
        """Where a batch begins in a log: where the last one ended, if that is still there."""
        at = start.get(info.name)
        if at is None:
            return info.start_offset
        if _is_new(known, info):
            if self._options.fail_on_data_loss:
                raise made_anew(info, known[info.name], at, "the checkpoint")
            return info.start_offset
        if at > info.end_offset and not self._options.fail_on_data_loss:
            return info.start_offset  # another log of the same name
        return checked_start(info, at, self._options, "the checkpoint")


def _ids(infos: dict[str, LogInfo]) -> LogIds:
    """The ids of logs, as far as they are known: a server of an older version tells none."""
    return {name: info.id for name, info in infos.items() if info.id}


def _is_new(known: LogIds, info: LogInfo) -> bool:
    """Whether a log is another one than a position was of; False if one of their ids is not known."""
    return bool(info.id) and known.get(info.name, info.id) != info.id


def shares(backlog: dict[str, int], most: int | None) -> dict[str, int]:
    """How many records of each log a batch takes: in proportion, and some of each if it can be."""
    total = sum(backlog.values())
    if most is None or total <= most:
        return backlog
    found = {name: size * most // total for name, size in backlog.items()}
    left = most - sum(found.values())
    for name, size in backlog.items():
        if left and size and not found[name]:
            found[name] = 1
            left -= 1
    for name, size in backlog.items():
        more = min(left, size - found[name])
        found[name] += more
        left -= more
    return found
