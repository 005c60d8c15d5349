"""Starting: where routing begins in a log that exists already."""

from __future__ import annotations

from bisect import bisect_left

from millstream.errors import CorruptionError, OutOfRange
from millstream.format.entries import decode_places
from millstream.log.head import Head
from millstream.log.reader import RowMoved, entries_of
from millstream.queue.spec import QueueSpec
from millstream.store.transaction import Transaction


def first_offset(tx: Transaction, log_id: int, head: Head, spec: QueueSpec) -> int:
    """The first offset of a log that a queue looks at."""
    if spec.start_ms is not None:
        return _offset_at(tx, log_id, head, spec.start_ms)
    if spec.start == "latest":
        return head.end
    if spec.start == "earliest":
        return head.start
    return max(head.start, min(int(spec.start), head.end))


def check_start(head: Head, spec: QueueSpec) -> None:
    """Refuse to begin at an offset that there is not yet."""
    if spec.start_ms is None and isinstance(spec.start, int) and spec.start > head.end:
        raise OutOfRange(
            f"a queue cannot start at offset {spec.start} of log {head.name!r}, which ends at "
            f"{head.end}; start at an offset up to {head.end}, or at 'latest'",
            position=spec.start,
            end=head.end,
        )


def _offset_at(tx: Transaction, log_id: int, head: Head, time_ms: int) -> int:
    """The first record that was appended at or after a time, or the end.

    It is found by halving, so the write lock is held for some reads, however long the log is. A
    damaged entry cannot say when it came: the queue begins there at the latest, passes over it and
    counts it.
    """
    low, high = head.start, head.end
    while low < high:
        middle = (low + high) // 2
        try:
            ((first, value),) = entries_of(
                tx.state.overlay, tx.writer, log_id, start=middle, stop=middle + 1
            )
            appended = decode_places(value).appended
        except (CorruptionError, RowMoved):
            high = middle
            continue
        at = bisect_left(appended, time_ms, max(low - first, 0), min(high - first, len(appended)))
        if at == min(high - first, len(appended)):
            low = first + at
        elif at > max(low - first, 0):
            return first + at
        else:
            high = first + at
    return low
