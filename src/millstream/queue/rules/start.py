"""The start of a queue: the first offset that routing reads in an existing log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from millstream.errors import CorruptionError, InvalidInput, OutOfRange
from millstream.format.entries import decode_places
from millstream.log.model.head import Head
from millstream.log.reading.damage import next_entry
from millstream.log.reading.reader import RowMoved, entries_of
from millstream.queue.model.spec import QueueSpec
from millstream.store.commit.transaction import WriteTransaction

AHEAD_MS_MAX = 60_000
"""The most by which a caller's clock may be ahead, so that "from now on" is not refused."""


def first_offset(tx: WriteTransaction, log_id: int, head: Head, spec: QueueSpec) -> int:
    """Return the first offset of a log that a queue routes."""
    if spec.start_ms is not None:
        return _offset_at(tx, log_id, head, spec.start_ms)
    if spec.start == "latest":
        return head.end
    if spec.start == "earliest":
        return head.start
    return max(head.start, min(int(spec.start), head.end))


def check_start(head: Head, spec: QueueSpec) -> None:
    """Refuse a start at an offset beyond the end of the log."""
    if spec.start_ms is None and isinstance(spec.start, int) and spec.start > head.end:
        raise OutOfRange(
            f"a queue cannot start at offset {spec.start} of log {head.name!r}, which ends at "
            f"{head.end}; start at an offset up to {head.end}, or at 'latest'",
            position=spec.start,
            end=head.end,
        )


def check_sources(spec: QueueSpec, logs: Collection[str]) -> None:
    """Refuse a start at an offset if a source matches no log yet, because the offset would be
    ignored.

    A log that is made later is routed from its first record. A start with the same meaning for such
    a log is accepted: 'latest', 'earliest', 0, or a time in the past.
    """
    if spec.start_ms is not None or not isinstance(spec.start, int) or not spec.start:
        return
    for source in spec.sources:
        alone = replace(spec, sources=(source,))
        if source not in logs and not any(alone.takes_from(log) for log in logs):
            raise OutOfRange(
                f"a queue cannot start at offset {spec.start} of source {source!r}: there is no such "
                "log yet, and a log that is made later is taken from its first record; make the log "
                "first, or start at 'earliest' or 'latest'",
                position=spec.start,
                end=0,
            )


def check_time(spec: QueueSpec, wall_ms: int) -> None:
    """Refuse a start in the future, because records appended before it would be routed
    nevertheless.
    """
    if spec.start_ms is not None and spec.start_ms > wall_ms + AHEAD_MS_MAX:
        raise InvalidInput(
            f"a queue cannot start at a time to come: start_ms is {spec.start_ms}, and it is "
            f"{wall_ms} now; start at 'latest', or make the queue at that time"
        )


def _offset_at(tx: WriteTransaction, log_id: int, head: Head, time_ms: int) -> int:
    """Return the offset of the first record appended at or after a time, or the end.

    A binary search keeps the number of reads under the write lock small. The time of a damaged
    entry is unknown: if the start may lie in a damaged entry, routing begins there and skips the
    damage.
    """
    low, high = head.start, head.end
    while low < high:
        middle = (low + high) // 2
        entry_times = _times(tx, log_id, middle)
        if entry_times is None:
            behind = next_entry(tx.view, log_id, None, middle, high)
            entry_times = _times(tx, log_id, behind) if behind < high else None
            if entry_times is None or entry_times[1][0] >= time_ms:
                high = middle
                continue
        first, appended = entry_times
        at = bisect_left(appended, time_ms, max(low - first, 0), min(high - first, len(appended)))
        if at == min(high - first, len(appended)):
            low = first + at
        elif at > max(low - first, 0):
            return first + at
        else:
            high = first + at
    return low


def _times(tx: WriteTransaction, log_id: int, offset: int) -> tuple[int, Sequence[int]] | None:
    """Return the first offset of the entry that covers an offset, and the append times of its
    records.
    """
    try:
        ((first, value),) = entries_of(tx.view, log_id, start=offset, stop=offset + 1)
        return first, decode_places(value).appended
    except (CorruptionError, RowMoved):
        return None
