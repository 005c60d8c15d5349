"""The offset for a time, at which a reader of the records since that time begins.

A record has two times. The store sets the time of the append (`appended`), which rises with the offset
unless the clock is set back. The producer may set another time (`timestamp`), in any order. Readers ask for
timestamps, as in Kafka's `offsets_for_times`. There is no index of timestamps, which every append would pay
for: the search uses that a record is seldom appended before the time that it bears.

1. A binary search over entries finds the first record that was appended at or after the time. If the record
   before it has a later timestamp, producers are ahead of the clock: a binary search by timestamps among the
   earlier records decides.
2. From there on the first record counts whose timestamp is at or after the time. Mostly the first record
   does. Late records are passed over, up to `SCANNED_MAX`.
3. Behind `SCANNED_MAX` late records, as after an import of old records, a binary search by timestamps decides.

So timestamps need no order, unless producers are ahead of the clock or more than `SCANNED_MAX` late records
follow each other. Then the answer is right if these timestamps rise with the offsets. Otherwise it is a record
at or after the time whose predecessor is before the time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from millstream.errors import CorruptionError
from millstream.format import block, entries
from millstream.log.reading.damage import next_entry
from millstream.log.reading.reader import RowMoved, entries_of
from millstream.store.state.view import Rows, View

SCANNED_MAX = 50_000
"""The number of late records that a search reads in order."""

TimesOf = Callable[[bytes], Sequence[int]]
"""Returns the times of the records of an entry."""

Find = Callable[[Sequence[int], int, int, int], int]
"""Returns the index of the first time at or after a time, between two indexes; else the second index."""


def offset_at(view: Rows, log_id: int, *, start: int, end: int, time_ms: int) -> int:
    """Return the offset of the first record in [start, end) whose timestamp is at or after a time."""
    first = first_appended(view, log_id, start=start, end=end, time_ms=time_ms)
    if first > start and _timestamp(view, log_id, first - 1) >= time_ms:
        return _first_stamped(view, log_id, start, first, time_ms)
    return _first_not_late(view, log_id, first, end, time_ms)


def first_appended(view: Rows, log_id: int, *, start: int, end: int, time_ms: int) -> int:
    """Return the offset of the first record in [start, end) appended at or after a time, or the end.

    The time of a damaged entry is unknown: if the offset may lie in a damaged entry, it is the first of it.
    """
    return _search(view, log_id, start, end, time_ms, _appended_of, bisect_left)


def _first_stamped(view: Rows, log_id: int, start: int, end: int, time_ms: int) -> int:
    return _search(view, log_id, start, end, time_ms, _timestamps_of, _first_at_or_after)


def _first_not_late(view: Rows, log_id: int, start: int, end: int, time_ms: int) -> int:
    stop = min(end, start + SCANNED_MAX)
    try:
        for first, value in entries_of(view, log_id, start=start, stop=stop):
            times = _timestamps_of(value)
            begin, behind = max(start - first, 0), min(end - first, len(times))
            at = _first_at_or_after(times, time_ms, begin, behind)
            if at < behind:
                return first + at
            stop = max(stop, first + behind)
    except (CorruptionError, RowMoved) as error:
        _check_damaged(view, error)
        stop = start
    return _first_stamped(view, log_id, stop, end, time_ms)


def _search(
    view: Rows, log_id: int, low: int, high: int, time_ms: int, times_of: TimesOf, find: Find
) -> int:
    """Search by halves, as if the times rose with the offsets; a step reads an entry."""
    while low < high:
        middle = (low + high) // 2
        entry_times = _times(view, log_id, middle, times_of)
        if entry_times is None:
            behind = next_entry(view, log_id, None, middle, high)
            entry_times = _times(view, log_id, behind, times_of) if behind < high else None
            if entry_times is None or entry_times[1][0] >= time_ms:
                high = middle
                continue
        first, times = entry_times
        begin, stop = max(low - first, 0), min(high - first, len(times))
        at = find(times, time_ms, begin, stop)
        if at == stop:
            low = first + at
        elif at > begin:
            return first + at
        else:
            high = first + at
    return low


def _times(
    view: Rows, log_id: int, offset: int, times_of: TimesOf
) -> tuple[int, Sequence[int]] | None:
    """Return the first offset of the entry that covers an offset, and its times; None for damage."""
    try:
        ((first, value),) = entries_of(view, log_id, start=offset, stop=offset + 1)
        return first, times_of(value)
    except (CorruptionError, RowMoved) as error:
        _check_damaged(view, error)
        return None


def _check_damaged(view: Rows, error: CorruptionError | RowMoved) -> None:
    """Raise the error again if a row may just have moved, so that the caller looks again with the lock."""
    if isinstance(error, RowMoved) and not isinstance(view, View):
        raise error


def _timestamp(view: Rows, log_id: int, offset: int) -> int:
    """Return the timestamp of a record; 0 for damage."""
    entry_times = _times(view, log_id, offset, _timestamps_of)
    return 0 if entry_times is None else entry_times[1][offset - entry_times[0]]


def _appended_of(value: bytes) -> Sequence[int]:
    return entries.decode_places(value).appended


def _timestamps_of(value: bytes) -> Sequence[int]:
    if block.is_block(value):
        return block.Block(value, kind=block.METADATA).timestamps()
    return entries.decode_singles([value]).timestamps


def _first_at_or_after(times: Sequence[int], time_ms: int, begin: int, stop: int) -> int:
    for at in range(begin, stop):
        if times[at] >= time_ms:
            return at
    return stop
