"""Streams of logs: Spark asks for the end of the next batch and reports the end of the last one.

A stream reads logs that appear later from their beginning. A cursor that follows a stream is a
watermark: all records before the cursor are processed. The cursor moves when Spark plans the next
batch.

A position holds the id of each log beside its offset. Another id under the same name means that
records of the log were set aside, or that the log was deleted and created again. In the first case
the stream continues where both logs begin to differ. In the second case the stream ends; with
failOnDataLoss=false it reads the new log from its beginning.
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
from millstream.log import commands as c
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
"""A batch of a stream has more tasks than other reads, because a trigger waits for the batch."""


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
        """Return the position at which a new query begins."""
        options = self._options
        session, infos = self._open(), self._look()
        check_named(options.starting, {*infos, *options.logs}, "startingOffsets")
        starts = {name: starting_offset(session, info, options) for name, info in infos.items()}
        self._follower.make(session, starts)
        return packed(starts, _ids(infos))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one limit, because Spark knows only one; `latestOffset` applies every limit."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        rows_min = options.min_offsets
        return ReadAllAvailable() if rows_min is None else ReadMinRows(rows_min)

    def latestOffset(self, start: Stored, limit: ReadLimit) -> Stored:  # noqa: N802
        """Return the position at which the next batch ends."""
        point("planning")
        infos = self._look()
        self.commit(start)  # Spark plans a batch once the one before it is done
        began, ids = unpacked(start), ids_in(start)
        ends = self._ends(infos)
        starts = {name: self._start(began, ids, infos[name]) for name in ends}
        new = {n: at for n, at in starts.items() if n not in began or _is_new(ids, infos[n])}
        self._follower.forget(set(new) & set(began))
        self._follower.make(self._open(), new)
        backlog = {name: max(0, end - starts[name]) for name, end in ends.items()}
        is_bounded = not isinstance(limit, ReadAllAvailable)
        if is_bounded and self._waits(sum(backlog.values())):
            return start
        counts = shares(backlog, self._most(limit, backlog, infos) if is_bounded else None)
        # The position keeps deleted logs at their last offset, because a log may come back.
        self._planned = {**began, **{name: starts[name] + counts[name] for name in ends}}
        if self._planned == began and not any(_is_new(ids, infos[name]) for name in ends):
            return start  # also one without ids, of an older version: there is nothing to do
        return packed(self._planned, {**ids, **_ids(infos)})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the ends of the logs, where a query of `Trigger.AvailableNow` stops."""
        self._target = {name: info.end_offset for name, info in self._look().items()}

    def reportLatestOffset(self) -> Stored:  # noqa: N802
        """Return the ends of the logs and the lag of the stream, for progress reports."""
        latest = {name: info.end_offset for name, info in self._look().items()}
        return reported(latest, self._planned)

    def partitions(self, start: Stored, end: Stored) -> Sequence[InputPartition]:
        """Return the bins of a batch."""
        options, began, ids = self._options, unpacked(start), ids_in(start)
        infos = self._infos or self._look()
        ranges, planned = [], ids_in(end)
        for name, stop in unpacked(end).items():
            if stop == began.get(name) and planned.get(name) == ids.get(name, planned.get(name)):
                continue
            info = infos.get(name)
            if info is None:
                if options.fail_on_data_loss:
                    raise lost(name, stop, 0, 0, "the checkpoint")
                continue
            if _is_new(planned, info) and self._continued(planned, info, stop) != stop:
                if options.fail_on_data_loss:
                    raise made_anew(name, info.id, old_id=planned[name], offset=stop)
                continue  # what was planned is gone; the next batch begins with the new log
            first = self._start(began, ids, info)
            if stop > info.end_offset and options.fail_on_data_loss:
                raise lost(name, stop, info.start_offset, info.end_offset, "the checkpoint")
            if first < min(stop, info.end_offset):
                ranges.append(Range(name, first, min(stop, info.end_offset)))
        sizes = BinSizes(
            bins_min=options.min_partitions,
            records_max=options.max_records,
            records=RECORDS_PER_BIN,
        )
        stream_bins = bins_by_partition(
            ranges, lambda range_: bytes_of(range_, infos[range_.log]), sizes
        )
        return [InputPartition(stream_bin) for stream_bin in stream_bins]

    def commit(self, end: Stored) -> None:
        """Move the cursors to the end of a processed batch."""
        if not self._options.cursor:
            return
        infos, ids = self._infos or self._look(), ids_in(end)
        floors = {
            name: floor
            for name, floor in unpacked(end).items()
            if name in infos and not _is_new(ids, infos[name]) and floor <= infos[name].end_offset
        }
        self._follower.move(self._open(), floors)

    def stop(self) -> None:
        """Close the session with the store."""
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
        """Return whether the backlog is too small for a batch and the stream may still wait."""
        offsets_min, now_s = self._options.min_offsets, self._clock.seconds()
        last_s = self._triggered_s
        is_late = last_s is None or now_s - last_s >= self._options.delay_ms / 1000
        if (
            offsets_min is not None
            and backlog < offsets_min
            and not is_late
            and self._target is None
        ):
            return True
        if backlog:
            self._triggered_s = now_s
        return False

    def _most(self, limit: ReadLimit, backlog: Position, infos: dict[str, LogInfo]) -> int | None:
        """Return the most records for a batch, by the limits of records and of bytes."""
        rows_max, bytes_max = self._options.max_offsets, self._options.max_bytes
        if isinstance(limit, ReadMaxRows):
            rows_max = limit.max_rows
        if bytes_max is None:
            return rows_max
        ranges = [Range(name, 0, count) for name, count in backlog.items() if count]
        size = sum(bytes_of(range_, infos[range_.log]) for range_ in ranges)
        fitting = max(1, bytes_max * sum(map(len, ranges)) // max(1, size))
        return fitting if rows_max is None else min(rows_max, fitting)

    def _look(self) -> dict[str, LogInfo]:
        """Describe the logs as they are now."""
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

    def _start(self, start: Position, ids: LogIds, info: LogInfo) -> int:
        """Return the first offset of a batch in a log: the end of the last batch, if stored."""
        at = start.get(info.name)
        if at is None:
            return info.start_offset
        if _is_new(ids, info):
            continued = self._continued(ids, info, at)
            if continued is None and self._options.fail_on_data_loss:
                raise made_anew(info.name, info.id, old_id=ids[info.name], offset=at)
            at = info.start_offset if continued is None else continued
        if at > info.end_offset and not self._options.fail_on_data_loss:
            return info.start_offset  # the log was deleted and created again
        return checked_start(info, at, self._options, "the checkpoint")

    def _continued(self, ids: LogIds, info: LogInfo, at: int) -> int | None:
        """Return where a position continues in the log that has the name now; None if unrelated."""
        extent = self._open().execute(c.GetExtent(info.name, ids[info.name]))
        return None if extent.equal_below is None else extent.position_of(at)


def _ids(infos: dict[str, LogInfo]) -> LogIds:
    """Return the known ids of the logs; a server of an older version sends no ids."""
    return {name: info.id for name, info in infos.items() if info.id}


def _is_new(ids: LogIds, info: LogInfo) -> bool:
    """Return whether a log has another id than in a position; False if either id is unknown."""
    return bool(info.id) and ids.get(info.name, info.id) != info.id


def shares(backlog: dict[str, int], limit: int | None) -> dict[str, int]:
    """Divide the limit of a batch among logs in proportion to their backlog, at least 1 each."""
    total = sum(backlog.values())
    if limit is None or total <= limit:
        return backlog
    counts = {name: size * limit // total for name, size in backlog.items()}
    spare = limit - sum(counts.values())
    for name, size in backlog.items():
        if spare and size and not counts[name]:
            counts[name] = 1
            spare -= 1
    for name, size in backlog.items():
        extra = min(spare, size - counts[name])
        counts[name] += extra
        spare -= extra
    return counts
