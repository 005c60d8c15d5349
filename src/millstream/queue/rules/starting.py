"""Starting: where routing begins in a log that exists already."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from millstream.errors import CorruptionError, OutOfRange
from millstream.format.entries import decode_places
from millstream.log.damage import next_entry
from millstream.log.head import Head
from millstream.log.reader import RowMoved, entries_of
from millstream.queue.model.spec import QueueSpec
from millstream.store.transaction import WriteTransaction


def first_offset(tx: WriteTransaction, log_id: int, head: Head, spec: QueueSpec) -> int:
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


def _offset_at(tx: WriteTransaction, log_id: int, head: Head, time_ms: int) -> int:
    """The first record that was appended at or after a time, or the end.

    It is found by halving, so the write lock is held for some reads, however long the log is. A
    damaged entry cannot say: if it may be the one, routing begins there and passes over it.
    """
    low, high = head.start, head.end
    while low < high:
        middle = (low + high) // 2
        found = _times(tx, log_id, middle)
        if found is None:
            behind = next_entry(tx.view, log_id, None, middle, high)
            found = _times(tx, log_id, behind) if behind < high else None
            if found is None or found[1][0] >= time_ms:
                high = middle
                continue
        first, appended = found
        at = bisect_left(appended, time_ms, max(low - first, 0), min(high - first, len(appended)))
        if at == min(high - first, len(appended)):
            low = first + at
        elif at > max(low - first, 0):
            return first + at
        else:
            high = first + at
    return low


def _times(tx: WriteTransaction, log_id: int, offset: int) -> tuple[int, Sequence[int]] | None:
    """The first offset of the entry that covers one, and when its records were appended."""
    try:
        ((first, value),) = entries_of(tx.view, log_id, start=offset, stop=offset + 1)
        return first, decode_places(value).appended
    except (CorruptionError, RowMoved):
        return None
