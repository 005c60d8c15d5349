"""Progress of a cursor in memory: the position and the acknowledged offsets, without I/O.

All surfaces share this part of a cursor: it chooses the next record, checks acknowledgements, and bounds
a flush.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Literal

from millstream.errors import Conflict, InvalidInput, OutOfRange, RecordsLost
from millstream.log.model.acknowledged import AcknowledgedRanges, Range, joined
from millstream.numbers import check_whole
from millstream.record import CursorInfo, Extent, Record

Acknowledged = Record | int | Iterable["Record | int"]

OnLoss = Literal["skip", "raise"]
"""The reaction of a cursor if the log has forgotten its next records: continue behind them with a warning
in the program's log (`skip`), or raise `RecordsLost` once and then continue."""

SECTION = 1_024
"""The number of records in a section; a flush moves the floor by whole sections."""


class CursorProgress:
    """A position and marks that start from the stored cursor; for any thread."""

    __slots__ = (
        "_again",
        "_doubtful",
        "_lock",
        "_marks",
        "_told_below",
        "_unacknowledged",
        "_untold",
        "log_id",
        "lost",
        "position",
        "section",
    )

    def __init__(self, info: CursorInfo, section: int | None = None) -> None:
        self._lock = threading.Lock()
        """Guards the marks and the doubtful range, which change in several steps."""
        self._marks = AcknowledgedRanges(info.floor, info.ranges)
        self.position = info.floor
        self.section = section or info.section
        self.log_id = info.log_id
        """The log that the position and the marks belong to."""
        self.lost: list[Range] = []
        """Ranges that the log forgot before this reader came there, and that were reported to the reader."""
        self._untold: list[Range] = list(info.lost_ranges)
        """Forgotten ranges that are not reported yet."""
        self._unacknowledged: list[Range] = []
        """Reported ranges that are not acknowledged in the stored cursor yet."""
        self._told_below = 0
        """Forgotten records below this offset were reported."""
        self._doubtful: Range = (0, 0)
        """The range of offsets at which the consumer may still hold records that were set aside."""
        self._again: dict[int, Record] = {}
        """Records of the doubtful range that were taken again, and may be acknowledged."""

    def catch_up(self, extent: Extent) -> None:
        """Move back to the first offset at which other records lie since the last look."""
        with self._lock:
            self.log_id = extent.id
            at = extent.equal_below
            if at is None:
                return
            first, stop = self._doubtful
            self._doubtful = min(at, first) if first < stop else at, max(stop, self.position)
            self._again = {offset: r for offset, r in self._again.items() if offset < at}
            self._marks.cut(at)
            self.position = extent.position_of(self.position)

    def overtaken(self, start: int) -> list[Range]:
        """Return new ranges that a log with this start forgot before the reader came there.

        Each range is reported once; the next acknowledgement covers the ranges (`unsettled`).
        """
        with self._lock:
            first = max(self.position, self._told_below)
            lost = [*self._untold, *self._marks.gaps(first, start)]
            self._untold = []
            self._told_below = max(self._told_below, start)
            self.lost += lost
            self._unacknowledged += lost
            return lost

    def unsettled(self) -> list[Range]:
        """Return the reported ranges that the stored cursor neither counts as lost nor has passed."""
        return list(self._unacknowledged)

    def settled(self, lost: list[Range], floor: int) -> None:
        """Note that the stored cursor counts the lost records below a floor."""
        with self._lock:
            below = {(first, stop) for first, stop in lost if stop <= floor}
            self._unacknowledged = [lost for lost in self._unacknowledged if lost not in below]

    def took(self, record: Record) -> None:
        """Note that a record is handed to the consumer."""
        self.position = record.offset + 1
        if self._is_doubtful(record.offset):
            with self._lock:
                self._again[record.offset] = record

    def check(self, log: str, records: Acknowledged, extent: Extent | None = None) -> None:
        """Raise for records of another log, and for records that were set aside after they were taken.

        A bare offset stands for the record that was taken last at this offset.
        """
        back_to = None if extent is None else extent.equal_below
        for record in [records] if isinstance(records, Record | int) else records:
            offset = record.offset if isinstance(record, Record) else record
            if isinstance(record, Record) and record.log != log:
                raise InvalidInput(f"a record of log {log!r} is expected, not {record!r:.100}")
            if back_to is not None and offset >= back_to:
                raise set_aside(log, back_to)
            if self._is_doubtful(offset) and offset >= self.position:
                raise set_aside(log, self._doubtful[0])
            if isinstance(record, Record) and self._again.get(offset, record) != record:
                raise set_aside(log, self._doubtful[0])

    def _is_doubtful(self, offset: int) -> bool:
        first, stop = self._doubtful
        return first <= offset < stop

    def next_gap(self, start: int, end: int) -> Range:
        """Return the next readable range of unacknowledged offsets."""
        with self._lock:
            first, stop = self._marks.next_gap(max(self.position, start))
        return first, end if stop < 0 else min(stop, end)

    def floor(self, start: int) -> int:
        """Return the first unacknowledged offset from `start` on."""
        with self._lock:
            return self._marks.next_gap(start)[0]

    def is_acked(self, offset: int) -> bool:
        """Return whether an offset is acknowledged."""
        with self._lock:
            return offset in self._marks

    def acked(self, ranges: list[Range], log_id: int) -> None:
        """Mark acknowledged ranges, unless the reader has gone on to another log meanwhile.

        The offsets of the other log may hold different records.
        """
        with self._lock:
            if log_id != self.log_id:
                return
            for first, stop in ranges:
                self._marks.add(first, stop)
            self._unacknowledged = [lost for lost in self._unacknowledged if lost not in ranges]
            if self._again:
                floor = self._marks.floor
                self._again = {n: record for n, record in self._again.items() if n >= floor}

    def moved(self, floor: int) -> None:
        """Move to a floor, and forget all marks."""
        with self._lock:
            self._untold, self._unacknowledged, self._told_below = [], [], 0
            self._marks = AcknowledgedRanges(floor)
            self.position = floor

    def go_back(self) -> None:
        """Move back to the first unacknowledged record."""
        with self._lock:
            self.position = self._marks.floor

    def flushable(self, start: int) -> int:
        """Return the last section boundary at or below the floor, for a log with this start."""
        with self._lock:
            self._marks.raise_floor(start)
            return self._marks.floor // self.section * self.section


def forgotten(log: str, cursor: str, ranges: list[Range], start: int) -> RecordsLost:
    """Return the error for a reader whose next records the log has forgotten."""
    count = sum(stop - first for first, stop in ranges)
    return RecordsLost(
        f"log {log!r} forgot {count:,} records before cursor {cursor!r} had read them, offsets "
        f"{ranges[0][0]} to {ranges[-1][1] - 1}: it starts at {start} now, and the cursor goes on "
        "there with the next take",
        log=log,
        cursor=cursor,
        count=count,
        ranges=[list(lost) for lost in ranges],
        offset=ranges[0][0],
        start=start,
    )


def set_aside(log: str, at: int) -> Conflict:
    """Return the error for an acknowledgement of records that were set aside after the read."""
    return Conflict(
        f"the records of log {log!r} from offset {at} on were set aside in a fork, and others take "
        "their place: what was read before cannot be acknowledged there; take again",
        log=log,
        equal_below=at,
    )


def listed(records: Acknowledged) -> list[Record | int]:
    """Return the records and offsets of an acknowledgement as a list."""
    if isinstance(records, Record):
        return [records]
    if isinstance(records, Iterable) and not isinstance(records, str | bytes):
        return [record if isinstance(record, Record) else _offset(record) for record in records]
    return [_offset(records)]


def ranges_of(records: Acknowledged) -> list[Range]:
    """Return the ranges of an acknowledgement, which is a record, an offset or several."""
    if isinstance(records, Record | int):
        records = [records]
    return joined(
        record.offset if isinstance(record, Record) else _offset(record) for record in records
    )


def check_on_loss(on_loss: object) -> None:
    """Raise unless the value is an `OnLoss`."""
    if on_loss not in ("skip", "raise"):
        raise InvalidInput(f"on_loss is 'skip' or 'raise', not {on_loss!r:.100}")


def check_section(section: object) -> None:
    """Raise unless a section is a positive whole number."""
    if type(section) is not int or section < 1:
        raise InvalidInput(f"a section has at least one record, not {section!r}")


def check_within(ranges: Iterable[Range], end: int) -> None:
    """Raise if a range reaches past the end."""
    for _, stop in ranges:
        if stop > end:
            raise OutOfRange(
                f"position {stop - 1} is past the end, {end}", position=stop - 1, end=end
            )


def _offset(value: object) -> int:
    """Return a valid offset of an acknowledgement; raise otherwise."""
    try:
        number = check_whole("offset", value)
    except InvalidInput:
        number = -1
    if number < 0:
        raise InvalidInput(
            f"an acknowledgement names records, or offsets from 0 on, not {value!r:.100}"
        )
    return number
