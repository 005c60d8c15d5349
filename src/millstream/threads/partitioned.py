# Generated from src/millstream/aio/partitioned.py by `make generate`: change that file, not this one.

"""A log with partitions as threads hold it: several logs, used as a single log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import heappop, heappush
from typing import Any, TypeVar, Unpack, overload

from millstream.command import Session, Transact
from millstream.errors import InvalidInput, InvalidName, NotFound, Partitioned, Truncated
from millstream.header import HeadersLike
from millstream.log import commands as c
from millstream.log.partitioner import Spreader
from millstream.log.progress import SECTION, OnLoss
from millstream.log.typed_records import decoder_of
from millstream.numbers import checked_numbers
from millstream.partitioning import partition_name
from millstream.record import (
    LogInfo,
    PartitionOffset,
    Producer,
    Record,
    Retention,
    Seconds,
    Time,
    optional_ms,
    time_ms_of,
)
from millstream.schema.history import SchemaMode, SchemaVersion
from millstream.schema.source import schema_of
from millstream.streaming.options import ProducerOptions, ProducerSettings
from millstream.threads.any_log import AnyLog
from millstream.threads.log import Log
from millstream.threads.log_consumer import LogConsumer
from millstream.threads.metadata import Metadata
from millstream.threads.partitioned_cursor import PartitionedCursor, open_partitioned_cursor
from millstream.threads.producer import PartitionedProducer

T = TypeVar("T")

READ_BYTES_MIN = 64 * 1024
"""What is read of each partition at a time, at least."""


def open_partitioned(session: Session, name: str) -> PartitionedLog:
    """The log of that name, with as many partitions as it has."""
    infos = session.execute(c.DescribePartitions(name))
    if not infos:
        raise NotFound(f"there is no log {name!r} with partitions", name=name)
    return PartitionedLog(session, name, len(infos), follows=True)


@checked_numbers
class PartitionedLog(AnyLog):
    """Records spread over several logs by key; records of a key stay in order.

    The first append creates the log. A number of partitions that differs from the number of the log
    raises `Partitioned`.
    """

    def __init__(
        self, session: Session, name: str, partitions: int, *, follows: bool = False
    ) -> None:
        self.spreader = Spreader(name, partitions)
        """Chooses the partitions of what is appended by this handle."""
        super().__init__(session, self.spreader.log)
        self._follows = follows
        self._is_made = follows

    def __repr__(self) -> str:
        return f"PartitionedLog({self.name!r}, partitions={self.partitions})"

    @property
    def partitions(self) -> int:
        """Return the number of partitions."""
        return self.spreader.partitions

    def partition(self, number: int) -> Log:
        """Return a partition, which is a plain log."""
        return Log(self._session, partition_name(self.name, self.spreader.check(number)))

    def partition_for(self, key: bytes | str) -> int:
        """The partition that the records of a key go to."""
        return self.spreader.of_key(key, self._session.limits)

    def create(self) -> None:
        """Make the log now, rather than with its first append."""
        self._session.execute(c.CreatePartitions(self.name, self.partitions))
        self._is_made = True

    def add_partitions(self, partitions: int) -> None:
        """Raise the number of partitions.

        Keys may belong to other partitions from then on. So the order of a key holds before and
        behind that, but not across it; and other handles spread as before until they are opened anew.
        """
        self._session.execute(c.CreatePartitions(self.name, partitions, grows=True))
        self.spreader = Spreader(self.name, partitions)

    def append(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
        producer: Producer | None = None,
    ) -> PartitionOffset:
        """Append a record to the partition of its key, and return its position when it is durable.

        Records without a `key` go to the partitions in turn, or to the named `partition`. `headers`
        and `timestamp` are those of `Log.append`. A `producer` counts its appends to one partition
        (`partition_for`).
        """
        number, command = self.spreader.one(
            value,
            key=key,
            headers=headers,
            timestamp=timestamp,
            partition=partition,
            producer=producer,
            limits=self._session.limits,
        )
        return PartitionOffset(number, self._append(command))

    def append_many(
        self,
        values: Iterable[Any],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        timestamps: Sequence[int] | int | None = None,
    ) -> list[PartitionOffset]:
        """Append a batch in one commit, all or nothing, and return the position of each record.

        `keys`, `headers` and `timestamps` are columns beside the values; or hand in `Item`s.
        """
        spread = self.spreader.many(
            values, keys=keys, headers=headers, timestamps=timestamps, limits=self._session.limits
        )
        appends = spread.appends
        if len(appends) > 1:
            return spread.places(self._append(Transact([*appends])))
        return spread.places([self._append(append) for append in appends])

    def producer(self, **settings: Unpack[ProducerSettings]) -> PartitionedProducer:
        """Return a producer, which appends single records to the partitions of their keys.

        The options are those of `Log.producer`. Records of a key are stored in the order of the calls.
        """
        return PartitionedProducer(
            self._session, self.spreader, ProducerOptions(**settings), self._append
        )

    def offset_at(self, time: Time) -> dict[int, int]:
        """Return, for each partition, what `Log.offset_at` returns for the time."""
        time_ms, is_ago = time_ms_of(time)
        return {
            number: self._session.execute(c.FindOffset(info.name, time_ms, is_ago))
            for number, info in enumerate(self.parts())
        }

    @overload
    def read(
        self,
        start: Mapping[int, int] | None = None,
        stop: Mapping[int, int] | None = None,
        *,
        since: Time | None = None,
    ) -> Iterator[Record]: ...
    @overload
    def read(
        self,
        start: Mapping[int, int] | None = None,
        stop: Mapping[int, int] | None = None,
        *,
        since: Time | None = None,
        type: type[T],
    ) -> Iterator[T]: ...
    def read(
        self,
        start: Mapping[int, int] | None = None,
        stop: Mapping[int, int] | None = None,
        *,
        since: Time | None = None,
        type: Any = None,
    ) -> Iterator[Any]:
        """Yield the records of all partitions as of now.

        Records of a partition come in offset order; records of several partitions in about the order of
        their appends. `start` and `stop` hold offsets by partition; partitions that are not named
        are read from the first record to the end. `since` begins at a time instead, as `offset_at`
        finds it in each partition. With `type` values are yielded, as by `Log.read`.
        """
        decode = None if type is None else decoder_of(type)
        start = self._begin(start, since)
        infos = self.parts()
        self._check_named(start, infos)
        self._check_named(stop, infos)
        bytes_max = max(READ_BYTES_MIN, self._session.limits.read_bytes_max // max(1, len(infos)))
        waiting: list[tuple[int, int, _Run]] = []
        for number, info in enumerate(infos):
            named = (start or {}).get(number)
            first = info.start_offset if named is None else named
            last = min((stop or {}).get(number, info.end_offset), info.end_offset)
            run = _Run(self._session, info.name, first, last, bytes_max)
            if run.fill(anywhere=named is None):
                heappush(waiting, (run.appended(), number, run))
        while waiting:
            _, number, run = heappop(waiting)
            for record in run.take(waiting[0][0] if waiting else None):
                yield record if decode is None else decode(record)
            if run.fill():
                heappush(waiting, (run.appended(), number, run))

    def __iter__(self) -> Iterator[Record]:
        return self.read()

    @overload
    def tail(
        self,
        start: Mapping[int, int] | None = None,
        *,
        since: Time | None = None,
        timeout: Seconds | None = None,
    ) -> Iterator[Record]: ...
    @overload
    def tail(
        self,
        start: Mapping[int, int] | None = None,
        *,
        since: Time | None = None,
        timeout: Seconds | None = None,
        type: type[T],
    ) -> Iterator[T]: ...
    def tail(
        self,
        start: Mapping[int, int] | None = None,
        *,
        since: Time | None = None,
        timeout: Seconds | None = None,
        type: Any = None,
    ) -> Iterator[Any]:
        """Yield records as they arrive, without end; or until no record came for `timeout`.

        Begins at the ends; or at the offsets `start`, by partition; or at a time, `since`. Partitions
        that are added later are read from their first record. `type` is that of `read`.
        """
        decode = None if type is None else decoder_of(type)
        start = self._begin(start, since)
        infos = self.parts()
        self._check_named(start, infos)
        following = [
            (start or {}).get(number, info.end_offset if start is None else info.start_offset)
            for number, info in enumerate(infos)
        ] or [0] * self.partitions
        while self.wait(following, timeout=timeout):
            following += [0] * (len(self.parts()) - len(following))
            for record in self.read(dict(enumerate(following))):
                yield record if decode is None else decode(record)
                following[record.partition] = record.offset + 1

    def wait(self, offsets: Sequence[int], *, timeout: Seconds | None = None) -> bool:
        """Wait until one partition has a record at its offset; False after `timeout` (default: no
        end)."""
        timeout_ms = optional_ms(timeout, "timeout")
        command = c.WaitForPartitions(self.name, list(offsets), timeout_ms)
        return self._session.execute(command)

    def parts(self) -> list[LogInfo]:
        """Return the line of a listing for each partition, in order; empty if the log does not
        exist."""
        infos = self._session.execute(c.DescribePartitions(self.name))
        if infos and len(infos) != self.partitions:
            if not self._follows:
                raise _other_number(self.name, len(infos), self.partitions)
            self.spreader = Spreader(self.name, len(infos))
        return infos

    def __len__(self) -> int:
        """How many records are there."""
        return sum(info.end_offset - info.start_offset for info in self.parts())

    def is_empty(self) -> bool:
        """Return True if no partition holds a record."""
        return all(info.end_offset == info.start_offset for info in self.parts())

    @property
    def metadata(self) -> Metadata:
        """A small map of JSON values kept with the log, which must exist."""
        return Metadata(self._session, partition_name(self.name, 0))

    def cursor(
        self,
        name: str,
        *,
        durable: bool = True,
        start: str | datetime | timedelta = "earliest",
        section: int = SECTION,
        on_loss: OnLoss = "skip",
    ) -> PartitionedCursor:
        """Return the cursor of this name over all partitions; make it at `start` if it does not exist.

        `start` is "earliest", "latest", a `datetime` with a time zone, or a `timedelta` for so long
        ago. `durable`, `section` and `on_loss` are those of `Log.cursor`, for each partition.
        """
        self.create()
        return open_partitioned_cursor(
            self._session,
            self,
            name,
            durable=durable,
            start=start,
            section=section,
            on_loss=on_loss,
        )

    def delete_cursor(self, name: str) -> bool:
        """Delete a cursor in all partitions; False if it did not exist."""
        steps = [c.DeleteCursor(info.name, name) for info in self.parts()]
        gone = self._session.execute(Transact([*steps])) if steps else []
        return any(gone)

    def hand_over(self, to: str) -> None:
        """Let the store of that id append to each partition from now on, and this one no longer."""
        for number in range(len(self.parts())):
            self.partition(number).hand_over(to)

    def consumer(
        self,
        name: str,
        *,
        prefetch: int = 256,
        auto_ack: bool = False,
        linger: Seconds = 0.005,
        timeout: Seconds | None = None,
        start: str | datetime | timedelta = "earliest",
        on_loss: OnLoss = "skip",
    ) -> LogConsumer:
        """A consumer, for `with`, that yields the records after a cursor one by one.

        `name`, `start` and `on_loss` are those of `cursor`. Up to `prefetch` records are read ahead,
        and acknowledgements are stored in groups, after `linger` at the latest. With `auto_ack` a
        record is acknowledged when the loop asks for the next one. The loop ends by `stop`, or after
        `timeout` without a record.
        """
        return LogConsumer(
            self,
            self._session,
            name,
            prefetch=prefetch,
            auto_ack=auto_ack,
            linger=linger,
            timeout=timeout,
            start=start,
            on_loss=on_loss,
        )

    def take_over(self) -> None:
        """Become the owner of each partition: this store appends from now on."""
        for number in range(len(self.parts())):
            self.partition(number).take_over()

    def delete(self) -> bool:
        """Delete the partitions with cursors and metadata; False if the log did not exist."""
        self._is_made = False
        if not self.parts():
            return False
        return self._session.execute(c.DeleteLog(self.name))

    def set_schema(
        self, schema: Any, *, mode: SchemaMode = "enforce", force: bool = False
    ) -> SchemaVersion:
        """Give all partitions a schema, or another version of it.

        `schema`, `mode` ("enforce", the default, or "warn") and `force` (False) are those of
        `Log.set_schema`.
        """
        checked = schema_of(schema)
        self.create()
        return super().set_schema(checked, mode=mode, force=force)

    def _set(self, rules: Retention) -> None:
        self.create()
        super()._set(rules)

    def _append(self, command: Any) -> Any:
        """Append; to a log that was deleted since it was last looked at, once it is made anew."""
        if not self._is_made:
            self.create()
            return self._session.execute(command)
        try:
            return self._session.execute(command)
        except InvalidName:
            if self.parts():
                raise
            self.create()
            return self._session.execute(command)

    def _begin(
        self, start: Mapping[int, int] | None, since: Time | None
    ) -> Mapping[int, int] | None:
        if since is None:
            return start
        if start is not None:
            raise InvalidInput("reading begins at offsets, start, or at a time, since; not both")
        return self.offset_at(since)

    def _check_named(self, offsets: Mapping[int, int] | None, infos: Sequence[LogInfo]) -> None:
        for number, offset in (offsets or {}).items():
            if number not in range(len(infos) or self.partitions) or offset < 0:
                raise InvalidInput(
                    f"offsets are named by partition, such as {{0: 5}}; log {self.name!r} has the "
                    f"partitions 0 to {self.partitions - 1}, and offsets begin at 0; "
                    f"not {{{number!r}: {offset!r}}}"
                )


def _other_number(log: str, count: int, expected: int) -> Partitioned:
    return Partitioned(
        f"log {log!r} has {count} partitions, not {expected}: say partitions={count}",
        log=log,
        partitions=count,
    )


class _Run:
    """What is read of one partition, a few blocks at a time."""

    def __init__(self, session: Session, log: str, start: int, stop: int, bytes_max: int) -> None:
        self._session = session
        self._log = log
        self._position, self._stop = start, stop
        self._bytes_max = bytes_max
        self._records: list[Record] = []
        self._at = 0

    def appended(self) -> int:
        """When the next record was appended."""
        return self._records[self._at].appended

    def take(self, until_ms: int | None) -> list[Record]:
        """Return the next records, up to the last record appended by then; None means every fetched
        record."""
        first, records = self._at, self._records
        at = len(records)
        if until_ms is not None:
            at = first + 1
            while at < len(records) and records[at].appended <= until_ms:
                at += 1
        self._at = at
        return records[first:at]

    def fill(self, *, anywhere: bool = False) -> bool:
        """Fetch the next record; False at the end.

        If retention just deleted the next record, fetch the first remaining record, if `anywhere` is
        set.
        """
        if self._at < len(self._records):
            return True
        if self._position >= self._stop:
            return False
        command = c.ReadBlocks(self._log, self._position, self._stop, self._bytes_max)
        try:
            blocks = self._session.execute(command)
        except Truncated as gone:
            if not anywhere:
                raise
            self._position = gone.start
            return self.fill(anywhere=True)
        if not blocks:
            return False  # the log was deleted meanwhile
        self._position = blocks[-1].offsets.stop
        self._records, self._at = [record for block in blocks for record in block.records()], 0
        return True
