# Generated from src/millstream/aio/cursor.py by `make generate`: change that file, not this one.

"""The cursor as threads hold it: takes records in order, acknowledges them in any order.

A durable cursor commits each acknowledgement. One that is not keeps them in memory, and `flush`
moves its durable floor to the last section boundary below: what lies above comes again after a
restart.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Protocol

from millstream.command import Session
from millstream.errors import CorruptionError, NotFound, Truncated
from millstream.log import commands as c
from millstream.log.model.names import check_integer, check_name
from millstream.log.progress import (
    Acknowledged,
    CursorProgress,
    OnLoss,
    check_on_loss,
    check_section,
    check_within,
    forgotten,
    listed,
    ranges_of,
)
from millstream.numbers import checked_numbers
from millstream.record import CursorInfo, Extent, Record, Seconds, Time, time_ms_of
from millstream.threads.runtime import Lock

_logger = logging.getLogger("millstream.cursor")


class Source(Protocol):
    """The source of a cursor: a log, or a staging handle over a log."""

    name: str

    def read(self, start: int | None = None, stop: int | None = None) -> Iterator[Record]:
        """The records in [start, stop)."""

    def read_next(self, start: int, stop: int | None = None) -> Iterator[Record]:
        """The records from `start` on, up to `stop` or as many as fit into one answer."""

    def start_offset(self) -> int:
        """Return the first offset with a record."""

    def end_offset(self) -> int:
        """The next offset to be given out."""

    def wait(self, offset: int, *, timeout: Seconds | None = None, log_id: int = 0) -> bool:
        """Wait until there is a record at the offset, or the end has gone back."""

    def extent(self, known: int = 0) -> Extent:
        """Both ends, and how far the end went back since it did so `known` times."""


def open_cursor(
    session: Session,
    source: Source,
    name: str,
    *,
    durable: bool,
    start: int | str | datetime | timedelta,
    section: int,
    on_loss: OnLoss = "skip",
) -> Cursor:
    """Return the cursor of this name; make it at `start` if it does not exist."""
    check_name(name, "cursor")
    check_section(section)
    check_on_loss(on_loss)
    if isinstance(start, datetime | timedelta):
        start = _offset_at(session, source.name, start)
    info = session.execute(c.OpenCursor(source.name, name, start, section, durable))
    progress = CursorProgress(info, section)
    return Cursor(session, source, name, durable=durable, progress=progress, on_loss=on_loss)


def _offset_at(session: Session, log: str, time: Time) -> int:
    return session.execute(c.FindOffset(log, *time_ms_of(time)))


@checked_numbers
class Cursor:
    """The position of one named reader; threads that share a cursor take different records."""

    def __init__(
        self,
        session: Session,
        source: Source,
        name: str,
        *,
        durable: bool,
        progress: CursorProgress,
        on_loss: OnLoss = "skip",
    ) -> None:
        self.name = name
        self.log_name = source.name
        self.durable = durable
        self._session = session
        self._source = source
        self.progress = progress
        self._on_loss = on_loss
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"Cursor({self._source.name!r}, {self.name!r})"

    def take(self, n: int = 1, *, wait: Seconds | None = None) -> list[Record]:
        """Return the next unacknowledged records, at most `n` (default: one), in order.

        With `wait` the call waits so many seconds for the first record; by default it does not wait. An
        empty list means that there is no record.
        """
        records, end = self._take(n)
        if records or wait is None or n < 1:
            return records
        log_id = self.progress.log_id
        if not self._source.wait(end, timeout=wait, log_id=log_id):
            return []
        return self._take(n, Extent(0, end + n, log_id))[0]

    def ack(self, records: Acknowledged) -> None:
        """Mark a record, an offset, or several as processed; in any order, and repeatedly.

        Raises `Conflict` if the records were set aside after the take: their offsets hold new records.
        """
        named = listed(records)
        self._ack(ranges_of(named), named)

    def ack_up_to(self, offset: int) -> None:
        """Mark everything before an offset as processed."""
        if check_integer("an offset", offset) > 0:
            self._ack([(0, offset)], [offset - 1])

    def is_acked(self, offset: int) -> bool:
        """Return True if a position is acknowledged; truncated positions count as acknowledged."""
        return self.progress.is_acked(offset) or offset < self._source.start_offset()

    def lost(self) -> list[tuple[int, int]]:
        """Return the ranges that retention deleted before this handle read the records."""
        return list(self.progress.lost)

    def position(self) -> int:
        """The next position that `take` looks at."""
        return self.progress.position

    def floor(self) -> int:
        """Everything below is acknowledged."""
        return self.progress.floor(self._source.start_offset())

    def size(self) -> int:
        """Return how many records were ever appended: the position of the next record."""
        return self._source.end_offset()

    def is_empty(self) -> bool:
        """Whether every record has been acknowledged."""
        return self.floor() >= self._source.end_offset()

    def reset(self) -> None:
        """Go back to the floor, so that everything unacknowledged comes again."""
        with self._lock:
            if self.durable:
                self.progress = CursorProgress(self.info(), self.progress.section)
            else:
                self.progress.catch_up(self._source.extent(self.progress.log_id))
            self.progress.go_back()

    def seek(self, offset: int | datetime | timedelta) -> None:
        """Set the floor, forwards or back, and forget acknowledgements above the floor.

        `offset` may be a time, as in `Log.offset_at`: a `datetime` with a time zone, or a `timedelta`
        for so long ago.
        """
        if isinstance(offset, datetime | timedelta):
            offset = _offset_at(self._session, self.log_name, offset)
        with self._lock:
            if self.durable:
                self._session.execute(c.MoveCursor(self._source.name, self.name, offset))
            else:
                end = self._source.end_offset()
                check_within([(0, check_integer("an offset", offset))], end)
            self.progress.moved(offset)

    def flush(self) -> int:
        """Move the durable floor up to the last section boundary, and return the floor."""
        if self.durable:
            return self.floor()
        with self._lock:
            extent = self._source.extent(self.progress.log_id)
            self.progress.catch_up(extent)
            target, log_id = self.progress.flushable(extent.start), self.progress.log_id
            lost = self.progress.unsettled()
            floor = self._session.execute(
                c.MoveCursor(
                    self._source.name, self.name, target, forward=True, log_id=log_id, lost=lost
                )
            )
            self.progress.settled(lost, target)
            return floor

    def info(self) -> CursorInfo:
        """How the cursor stands in the store."""
        info = self._session.execute(c.DescribeCursor(self._source.name, self.name))
        if info is None:
            raise NotFound(f"log {self._source.name!r} has no cursor {self.name!r}", name=self.name)
        return info

    def delete(self) -> bool:
        """Forget the cursor; False if it was gone already."""
        return self._session.execute(c.DeleteCursor(self._source.name, self.name))

    def _take(self, n: int, expected: Extent | None = None) -> tuple[list[Record], int]:
        """Return the next records and the end of the log at this moment; an error moves nothing.

        With an expected extent the first read comes before the look at the extent. Each read is
        followed by a look, so that records of a part that was set aside are not returned.
        """
        with self._lock:
            before = self.progress.position
            records: list[Record] = []
            try:
                if expected is not None:
                    self._advance(n, expected, records)
                while True:
                    extent = self._source.extent(self.progress.log_id)
                    if extent.equal_below is not None:
                        self.progress.position = (
                            before  # the records may belong to the part that was set aside
                        )
                        self.progress.catch_up(extent)
                        before, records = self.progress.position, []
                    if not self._advance(n, extent, records):
                        return records, extent.end
            except BaseException:
                self.progress.position = before  # what was not handed over comes again
                raise

    def _advance(self, n: int, extent: Extent, records: list[Record]) -> bool:
        """Read the next run of unacknowledged records; False at the end of the log or with enough records."""
        if lost := self.progress.overtaken(extent.start):
            error = forgotten(self.log_name, self.name, lost, extent.start)
            if self._on_loss == "raise":
                raise error
            _logger.warning(
                "records_lost log=%r cursor=%r ranges=%r", self.log_name, self.name, lost
            )
        first, stop = self.progress.next_gap(extent.start, extent.end)
        if len(records) >= n:
            return False
        if first >= stop:
            position = max(self.progress.position, min(first, extent.end))
            self.progress.position = position
            return False
        try:
            stop = min(stop, first + n - len(records))
            for record in self._source.read_next(first, stop):
                records.append(record)
                self.progress.took(record)
        except Truncated:
            pass  # retention went past us meanwhile: go on at the new start
        except CorruptionError:
            if not records:
                raise
            return False  # return the sound records first; the next take raises the damage
        return True

    def _ack(self, ranges: list[tuple[int, int]], named: list[Record | int]) -> None:
        if not ranges:
            return
        log, progress = self._source.name, self.progress
        log_id = progress.log_id
        if self.durable:
            progress.check(log, named)
            lost = progress.unsettled()
            self._session.execute(c.Acknowledge(log, self.name, ranges, log_id, lost))
            ranges = [*lost, *ranges]
        else:
            extent = self._source.extent(log_id)
            progress.check(log, named, extent)
            check_within(ranges, extent.end)
        self.progress.acked(ranges, log_id)
