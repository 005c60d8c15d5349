"""Progress: what a reader holds in memory, the position and the marks; without any I/O.

This is the part of a cursor that is the same for every surface: which record comes next, what an
acknowledgement means, how far a flush may go.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Literal

from millstream.errors import Conflict, InvalidInput, OutOfRange, Truncated
from millstream.log.model.marks import Marks, Range, joined
from millstream.numbers import check_whole
from millstream.record import CursorInfo, Extent, Record

Acknowledged = Record | int | Iterable["Record | int"]

OnLost = Literal["skip", "raise"]
"""What a cursor does whose next records its log has forgotten: go on behind them with a line in the
program's log (`skip`), or raise `Truncated` once, then go on."""

SECTION = 1_024
"""Records in a section: a flush moves the floor by whole ones."""


class CursorProgress:
    """A position and marks that start where the stored cursor stands. Any thread may use it."""

    __slots__ = (
        "_again",
        "_doubtful",
        "_lock",
        "_marks",
        "_told_below",
        "_unacknowledged",
        "_untold",
        "lost",
        "position",
        "section",
        "setbacks",
    )

    def __init__(self, info: CursorInfo, section: int | None = None) -> None:
        self._lock = threading.Lock()
        """Marks and what is doubtful change in several steps, and are not seen in between."""
        self._marks = Marks(info.floor, info.ranges)
        self.position = info.floor
        self.section = section or info.section
        self.setbacks = info.setbacks
        self.lost: list[Range] = []
        """Records that the log forgot before this reader had come there, and of which it was told."""
        self._untold: list[Range] = list(info.lost)
        """Those of which it was not told yet."""
        self._unacknowledged: list[Range] = []
        """Those of which it was told and that the stored cursor still has as unread."""
        self._told_below = 0
        """Of what the log forgot below this offset, the reader was told."""
        self._doubtful: Range = (0, 0)
        """Offsets at which the consumer may still hold records that were set aside."""
        self._again: dict[int, Record] = {}
        """Records that were taken since at those offsets: they may be acknowledged."""

    def catch_up(self, extent: Extent) -> None:
        """Go back to where the log's records are others since they were last looked at."""
        with self._lock:
            self.setbacks = extent.setbacks
            at = extent.set_back_to
            if at is None:
                return
            first, stop = self._doubtful
            self._doubtful = min(at, first) if first < stop else at, max(stop, self.position)
            self._again = {offset: one for offset, one in self._again.items() if offset < at}
            self._marks.cut(at)
            self.position = min(self.position, at)

    def overtaken(self, start: int) -> list[Range]:
        """Records that the log, which starts here now, forgot before this reader came to them.

        Each is told once; the next acknowledgement covers them (`with_lost`).
        """
        with self._lock:
            first = max(self.position, self._told_below)
            found = [*self._untold, *self._marks.gaps(first, start)]
            self._untold = []
            self._told_below = max(self._told_below, start)
            self.lost += found
            self._unacknowledged += found
            return found

    def with_lost(self, ranges: list[Range]) -> list[Range]:
        """What is acknowledged, together with what the log forgot and the reader knows of."""
        return [*self._unacknowledged, *ranges]

    def took(self, record: Record) -> None:
        """A record is handed to the consumer."""
        self.position = record.offset + 1
        if self._is_doubtful(record.offset):
            with self._lock:
                self._again[record.offset] = record

    def check(self, log: str, records: Acknowledged, extent: Extent | None = None) -> None:
        """Refuse to acknowledge records that were set aside since they were taken.

        An offset alone does not say which record is meant: it counts for the one that was taken last.
        """
        back_to = None if extent is None else extent.set_back_to
        for one in [records] if isinstance(records, Record | int) else records:
            offset = one.offset if isinstance(one, Record) else one
            if back_to is not None and offset >= back_to:
                raise set_aside(log, back_to)
            if self._is_doubtful(offset) and offset >= self.position:
                raise set_aside(log, self._doubtful[0])
            if isinstance(one, Record) and self._again.get(offset, one) != one:
                raise set_aside(log, self._doubtful[0])

    def _is_doubtful(self, offset: int) -> bool:
        first, stop = self._doubtful
        return first <= offset < stop

    def next_gap(self, start: int, end: int) -> Range:
        """The next run of unacknowledged offsets that can be read: [from, to)."""
        with self._lock:
            first, stop = self._marks.next_gap(max(self.position, start))
        return first, end if stop < 0 else min(stop, end)

    def floor(self, start: int) -> int:
        """The first offset from `start` on that is not acknowledged."""
        with self._lock:
            return self._marks.next_gap(start)[0]

    def is_acked(self, offset: int) -> bool:
        """Whether an offset is marked."""
        with self._lock:
            return offset in self._marks

    def acked(self, ranges: list[Range], setbacks: int) -> None:
        """Mark ranges that were acknowledged when the log's end had gone back so many times.

        If it went back since, other records may be there now: those are not marked.
        """
        with self._lock:
            if setbacks != self.setbacks:
                return
            for first, stop in ranges:
                self._marks.add(first, stop)
            kept = [one for one in self._unacknowledged if one not in ranges]
            self._unacknowledged = kept
            if self._again:
                floor = self._marks.floor
                self._again = {n: one for n, one in self._again.items() if n >= floor}

    def moved(self, floor: int) -> None:
        """Start over at a floor."""
        with self._lock:
            self._untold, self._unacknowledged, self._told_below = [], [], 0
            self._marks = Marks(floor)
            self.position = floor

    def go_back(self) -> None:
        """Look at everything again that is not acknowledged."""
        with self._lock:
            self.position = self._marks.floor

    def flushable(self, start: int) -> int:
        """The last section boundary at or below the floor, of a log that begins at `start`."""
        with self._lock:
            self._marks.raise_floor(start)
            return self._marks.floor // self.section * self.section


def forgotten(log: str, cursor: str, ranges: list[Range], start: int) -> Truncated:
    """What a reader is told whose next records the log has forgotten."""
    count = sum(stop - first for first, stop in ranges)
    return Truncated(
        f"log {log!r} forgot {count:,} records before cursor {cursor!r} had read them, offsets "
        f"{ranges[0][0]} to {ranges[-1][1] - 1}: it starts at {start} now, and the cursor goes on "
        "there with the next take",
        log=log,
        offset=ranges[0][0],
        start=start,
        ranges=[list(one) for one in ranges],
    )


def set_aside(log: str, at: int) -> Conflict:
    """The error for an acknowledgement of records that were set aside since they were read."""
    return Conflict(
        f"the records of log {log!r} from offset {at} on were set aside in a fork, and others take "
        "their place: what was read before cannot be acknowledged there; take again",
        log=log,
        set_back_to=at,
    )


def listed(records: Acknowledged) -> list[Record | int]:
    """What an acknowledgement names: a record, an offset, or several of them."""
    if isinstance(records, Record):
        return [records]
    if isinstance(records, Iterable) and not isinstance(records, str | bytes):
        return [one if isinstance(one, Record) else _offset(one) for one in records]
    return [_offset(records)]


def ranges_of(records: Acknowledged) -> list[Range]:
    """What is to be acknowledged, as ranges: a record, an offset, or several."""
    if isinstance(records, Record | int):
        records = [records]
    return joined(one.offset if isinstance(one, Record) else _offset(one) for one in records)


def check_on_lost(on_lost: object) -> None:
    """Refuse what is not offered."""
    if on_lost not in ("skip", "raise"):
        raise InvalidInput(f"on_lost is 'skip' or 'raise', not {on_lost!r:.100}")


def check_section(section: object) -> None:
    """A flush moves the floor by whole sections."""
    if type(section) is not int or section < 1:
        raise InvalidInput(f"a section has at least one record, not {section!r}")


def check_within(ranges: Iterable[Range], end: int) -> None:
    """Every position must be below the end."""
    for _, stop in ranges:
        if stop > end:
            raise OutOfRange(
                f"position {stop - 1} is past the end, {end}", position=stop - 1, end=end
            )


def _offset(value: object) -> int:
    """The offset that an acknowledgement names."""
    try:
        number = check_whole("offset", value)
    except InvalidInput:
        number = -1
    if number < 0:
        raise InvalidInput(
            f"an acknowledgement names records, or offsets from 0 on, not {value!r:.100}"
        )
    return number
