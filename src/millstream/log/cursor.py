"""The cursor as users hold it: takes records in order, acknowledges them in any order.

A durable cursor commits each acknowledgement. One that is not keeps them in memory, and `flush`
moves its durable floor to the last section boundary below: what lies above comes again after a
restart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

from millstream.command import Session
from millstream.errors import CorruptionError, NotFound, Truncated
from millstream.log import commands as c
from millstream.log.names import check_integer, check_name
from millstream.log.progress import Acknowledged, Progress, check_within, ranges_of
from millstream.record import CursorInfo, Record, Seconds

SECTION = 1_024
"""Records in a section: a flush moves the floor by whole ones."""


class Source(Protocol):
    """What a cursor reads: a log, or a staging handle over one."""

    name: str

    def read(self, start: int | None = None, stop: int | None = None) -> Iterator[Record]:
        """The records in [start, stop)."""

    def start_offset(self) -> int:
        """The first offset that is there."""

    def end_offset(self) -> int:
        """The next offset to be given out."""

    def wait(self, offset: int, *, timeout: Seconds | None = None) -> bool:
        """Block until there is a record at the offset."""


class Cursor:
    """How far one named reader has come. Any thread may use it."""

    def __init__(
        self,
        session: Session,
        source: Source,
        name: str,
        *,
        durable: bool,
        start: int | str,
        section: int,
    ) -> None:
        self.name = check_name(name, "cursor")
        self.log_name = source.name
        self.durable = durable
        self._session = session
        self._source = source
        info = session.execute(c.OpenCursor(source.name, name, start, section, durable))
        self._lock = threading.Lock()
        self.progress = Progress(info)
        self.progress.section = section

    def __repr__(self) -> str:
        return f"Cursor({self._source.name!r}, {self.name!r})"

    def take(self, n: int = 1, *, wait: Seconds | None = None) -> list[Record]:
        """The next unacknowledged records, at most `n`, in order; waits for the first if asked."""
        end = self._source.end_offset()
        found = self._take(n, end)
        if not found and wait is not None and n > 0 and self._source.wait(end, timeout=wait):
            found = self._take(n, self._source.end_offset())
        return found

    def ack(self, records: Acknowledged) -> None:
        """Mark a record, an offset, or several, as processed; in any order, also twice."""
        self._ack(ranges_of(records))

    def ack_up_to(self, offset: int) -> None:
        """Mark everything before an offset as processed."""
        if check_integer("an offset", offset) > 0:
            self._ack([(0, offset)])

    def is_acked(self, offset: int) -> bool:
        """Whether a position has been acknowledged; what was truncated counts as such."""
        return offset in self.progress.marks or offset < self._source.start_offset()

    def position(self) -> int:
        """The next position that `take` looks at."""
        return self.progress.position

    def floor(self) -> int:
        """Everything below is acknowledged."""
        return self.progress.marks.next_gap(self._source.start_offset())[0]

    def size(self) -> int:
        """How many records have ever been appended: the position that the next one gets."""
        return self._source.end_offset()

    def is_empty(self) -> bool:
        """Whether every record has been acknowledged."""
        return self.floor() >= self._source.end_offset()

    def reset(self) -> None:
        """Go back to the floor, so that everything unacknowledged comes again."""
        if self.durable:
            section = self.progress.section
            self.progress = Progress(self.info())
            self.progress.section = section
        self.progress.position = self.progress.marks.floor

    def seek(self, offset: int) -> None:
        """Set the floor, forwards or back; what was acknowledged above it is forgotten."""
        if self.durable:
            self._session.execute(c.MoveCursor(self._source.name, self.name, offset))
        else:
            check_within([(0, check_integer("an offset", offset))], self._source.end_offset())
        with self._lock:
            self.progress.moved(offset)

    def flush(self) -> int:
        """Move the durable floor up to the last section boundary; answers where it stands."""
        if self.durable:
            return self.floor()
        self.progress.marks.raise_floor(self._source.start_offset())
        target = self.progress.flushable()
        return self._session.execute(
            c.MoveCursor(self._source.name, self.name, target, forward=True)
        )

    def info(self) -> CursorInfo:
        """How the cursor stands in the store."""
        found = self._session.execute(c.DescribeCursor(self._source.name, self.name))
        if found is None:
            raise NotFound(f"log {self._source.name!r} has no cursor {self.name!r}", name=self.name)
        return found

    def delete(self) -> bool:
        """Forget the cursor; False if it was gone already."""
        return self._session.execute(c.DeleteCursor(self._source.name, self.name))

    def _take(self, n: int, end: int) -> list[Record]:
        with self._lock:
            return self._take_next(n, end)

    def _take_next(self, n: int, end: int) -> list[Record]:
        progress, source = self.progress, self._source
        found: list[Record] = []
        while len(found) < n:
            end = min(end, source.end_offset())  # less if the log was deleted meanwhile
            first, stop = progress.next_gap(source.start_offset(), end)
            if first >= stop:
                progress.position = max(progress.position, min(first, end))
                break
            try:
                for record in source.read(first, min(stop, first + n - len(found))):
                    found.append(record)
                    progress.position = record.offset + 1
            except Truncated:
                continue  # retention went past us meanwhile: go on at the new start
            except CorruptionError:
                if not found:
                    raise
                break  # what is sound first; the next take says what is damaged
        return found

    def _ack(self, ranges: list[tuple[int, int]]) -> None:
        if not ranges:
            return
        if self.durable:
            self._session.execute(c.Acknowledge(self._source.name, self.name, ranges))
        else:
            check_within(ranges, self._source.end_offset())
        with self._lock:
            self.progress.acked(ranges)
