# Generated from src/millstream/aio/partitioned_cursor.py by `make generate`: change that file, not this one.

"""A cursor over all partitions of a log: a position per partition, and one commit per acknowledgement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import convert

from millstream.command import Session, Transact
from millstream.errors import CorruptionError, InvalidInput
from millstream.log import commands as c
from millstream.log.model.names import check_name
from millstream.log.progress import CursorProgress, OnLoss, check_on_loss, check_section
from millstream.numbers import checked_numbers
from millstream.partitioning import partition_name
from millstream.record import CursorInfo, LogInfo, PartitionOffset, Record, Seconds, Time
from millstream.threads.cursor import Cursor
from millstream.threads.log import Log
from millstream.threads.runtime import Lock
from millstream.threads.transaction import Transaction

Taken = Record | PartitionOffset | Iterable["Record | PartitionOffset"]
"""What is acknowledged: an offset alone does not say of which partition."""


Starts = str | Mapping[int, int]
"""The start of a new cursor: "earliest", "latest", or an offset for each partition."""


class PartitionedSource(Protocol):
    """The source of a partitioned cursor: a log with partitions."""

    name: str

    def parts(self) -> list[LogInfo]:
        """Return the line of a listing for each partition."""

    def offset_at(self, time: Time) -> dict[int, int]:
        """Return, for each partition, the offset of the first record at or after a time."""

    def wait(self, offsets: Sequence[int], *, timeout: Seconds | None = None) -> bool:
        """Wait until one partition has a record at its offset."""


def open_partitioned_cursor(
    session: Session,
    source: PartitionedSource,
    name: str,
    *,
    durable: bool,
    start: str | datetime | timedelta,
    section: int,
    on_loss: OnLoss = "skip",
) -> PartitionedCursor:
    """Return the cursor of this name over all partitions; a new cursor begins at `start`."""
    check_name(name, "cursor")
    check_section(section)
    check_on_loss(on_loss)
    if not isinstance(start, datetime | timedelta) and start not in ("earliest", "latest"):
        raise InvalidInput(
            f"a cursor on a log with partitions starts at 'earliest', 'latest' or a time, not {start!r}; "
            "`seek` sets an offset for each"
        )
    cursor = PartitionedCursor(
        session, source, name, durable=durable, section=section, on_loss=on_loss
    )
    starts = source.offset_at(start) if isinstance(start, datetime | timedelta) else start
    cursor.open(len(source.parts()), starts)
    return cursor


@checked_numbers
class PartitionedCursor:
    """The position of a named reader in each partition of a log.

    Threads that share a cursor take different records. Use a queue to share records between
    processes.
    """

    def __init__(
        self,
        session: Session,
        source: PartitionedSource,
        name: str,
        *,
        durable: bool,
        section: int,
        on_loss: OnLoss = "skip",
    ) -> None:
        self.name = name
        self.log_name = source.name
        self.durable = durable
        self._session = session
        self._source = source
        self._section = section
        self._on_loss: OnLoss = on_loss
        self._cursors: list[Cursor] = []
        self._turn = 0
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"PartitionedCursor({self.log_name!r}, {self.name!r})"

    def open(self, count: int, start: Starts) -> None:
        """Have a position in each of so many partitions; a partition without one begins at `start`.

        A partition that `start` does not name begins at its first record.
        """
        numbers = range(len(self._cursors), count)
        names = [partition_name(self.log_name, number) for number in numbers]
        starts = [
            start if isinstance(start, str) else start.get(number, "earliest") for number in numbers
        ]
        steps = [
            c.OpenCursor(log, self.name, at, self._section, self.durable)
            for log, at in zip(names, starts, strict=True)
        ]
        if not steps:
            return
        answers = self._session.execute(Transact([*steps]))
        for log, info in zip(names, convert(answers, list[CursorInfo]), strict=True):
            self._cursors.append(
                Cursor(
                    self._session,
                    Log(self._session, log),
                    self.name,
                    durable=self.durable,
                    progress=CursorProgress(info, self._section),
                    on_loss=self._on_loss,
                )
            )

    def lost(self) -> dict[int, list[tuple[int, int]]]:
        """Return the ranges that retention deleted before this handle read the records, by partition."""
        return {
            number: list(cursor.progress.lost)
            for number, cursor in enumerate(self._cursors)
            if cursor.progress.lost
        }

    def take(self, n: int = 1, *, wait: Seconds | None = None) -> list[Record]:
        """Return the next unacknowledged records, at most `n` (default: one).

        Records of a partition come in order, and the partitions are taken from in turn. With `wait` the
        call waits so many seconds for the first record; by default it does not wait.
        """
        records, ends = self._take(n)
        if records or wait is None or n < 1:
            return records
        return self._take(n)[0] if self._source.wait(ends, timeout=wait) else []

    def ack(self, records: Taken) -> None:
        """Mark records as processed, in one commit; in any order, also twice."""
        shares = self.by_partition(records)
        if not self.durable or len(shares) == 1:
            for cursor, offsets in shares:
                cursor.ack(offsets)
            return
        with Transaction(self._session) as tx:
            for cursor, offsets in shares:
                tx.ack(cursor, offsets)

    def by_partition(self, records: Taken) -> list[tuple[Cursor, list[Record | int]]]:
        """Return the cursors of the partitions, with the records of each partition."""
        shares: dict[int, list[Record | int]] = {}
        for record in records if isinstance(records, Iterable) else [records]:
            if isinstance(record, Record) and record.log == partition_name(
                self.log_name, record.partition
            ):
                shares.setdefault(record.partition, []).append(record)
            elif isinstance(record, PartitionOffset):
                shares.setdefault(record.partition, []).append(record.offset)
            else:
                raise InvalidInput(
                    f"an acknowledgement names records of log {self.log_name!r}, or places such as "
                    f"PartitionOffset(partition, offset); not {record!r:.200}"
                )
        for number in shares:
            if not 0 <= number < len(self._cursors):
                raise InvalidInput(f"log {self.log_name!r} has no partition {number}")
        return [(self._cursors[number], share) for number, share in shares.items()]

    def floors(self) -> list[int]:
        """Of each partition, the offset below which everything is acknowledged."""
        return [cursor.floor() for cursor in self._cursors]

    def is_empty(self) -> bool:
        """Whether every record of every partition has been acknowledged."""
        self.open(len(self._source.parts()), "earliest")
        empty = [cursor.is_empty() for cursor in self._cursors]
        return all(empty)

    def reset(self) -> None:
        """Go back to the floors, so that everything unacknowledged comes again."""
        with self._lock:
            for cursor in self._cursors:
                cursor.reset()

    def seek(self, offsets: Mapping[int, int] | datetime | timedelta) -> None:
        """Set the floors of the partitions that are named, in one commit; or of all, to a time.

        A time is a `datetime` with a time zone, or a `timedelta` for so long ago.
        """
        if isinstance(offsets, datetime | timedelta):
            offsets = self._source.offset_at(offsets)
            self.open(len(offsets), "earliest")
        for number in offsets:
            if number not in range(len(self._cursors)):
                raise InvalidInput(f"log {self.log_name!r} has no partition {number!r}")
        with self._lock:
            if not self.durable:
                for number, offset in offsets.items():
                    self._cursors[number].seek(offset)
                return
            with Transaction(self._session) as tx:
                for number, offset in offsets.items():
                    tx.seek(self._cursors[number], offset)

    def flush(self) -> list[int]:
        """Move the durable floors up to their last section boundaries, and return the floors."""
        return [cursor.flush() for cursor in self._cursors]

    def info(self) -> list[CursorInfo]:
        """How the cursor stands in each partition."""
        return [cursor.info() for cursor in self._cursors]

    def delete(self) -> bool:
        """Forget the cursor in all partitions; False if it was gone already."""
        steps = [c.DeleteCursor(cursor.log_name, self.name) for cursor in self._cursors]
        gone = self._session.execute(Transact([*steps]))
        return any(gone)

    def _take(self, n: int) -> tuple[list[Record], list[int]]:
        """Return the next records, and the end of each partition at this moment; an error moves nothing."""
        with self._lock:
            infos = self._source.parts()
            self.open(len(infos), "earliest")
            ends = [info.end_offset for info in infos]
            records: list[Record] = []
            count = len(infos)
            first, self._turn = self._turn, self._turn + 1
            before = [cursor.progress.position for cursor in self._cursors]
            try:
                for number in [(first + at) % count for at in range(count)]:
                    cursor = self._cursors[number]
                    if len(records) >= n:
                        break
                    if cursor.progress.position == ends[number]:
                        continue
                    try:
                        records += cursor.take(n - len(records))
                    except CorruptionError:
                        if not records:
                            raise
                        break  # return the sound records; a take that begins here raises the damage
            except BaseException:  # what was not handed over comes again
                for cursor, position in zip(self._cursors, before, strict=True):
                    cursor.progress.position = min(position, cursor.progress.position)
                raise
            return records, ends
