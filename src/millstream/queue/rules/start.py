"""The start of a queue: the first offset that routing reads in an existing log."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from millstream.errors import InvalidInput, OutOfRange
from millstream.log.model.head import Head
from millstream.log.reading.times import first_appended
from millstream.queue.model.spec import QueueSpec
from millstream.store.commit.transaction import WriteTransaction

AHEAD_MS_MAX = 60_000
"""The most by which a caller's clock may be ahead, so that "from now on" is not refused."""


def first_offset(tx: WriteTransaction, log_id: int, head: Head, spec: QueueSpec) -> int:
    """Return the first offset of a log that a queue routes."""
    if spec.start_ms is not None:
        return first_appended(
            tx.view, log_id, start=head.start, end=head.end, time_ms=spec.start_ms
        )
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
