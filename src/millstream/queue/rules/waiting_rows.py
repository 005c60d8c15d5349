"""Waiting rows: finds the row of the index that lists a waiting message.

A row lists neighbours with the same due time or rank. The bucket says when a message is due, so the
row is mostly found by its key. The due time of a scheduled message is known to a second only, because
the bucket has store time and the row has wall time. If the wall clock was set, or a setting that
decides the rank was altered, all rows of the type are searched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from msgspec import Struct

from millstream.engine.commit import Row
from millstream.format import keys
from millstream.format.ids import bucket_of
from millstream.queue.model.state import QueueState
from millstream.queue.rules.lookup import all_rows

ROWS_PER_BUCKET = 10_000
"""The most rows that list messages of one bucket: a bucket has up to as many slots."""

SPREAD_MS = 1_000
"""The most by which the computed due time of a scheduled message is off, unless a clock was set."""

DueKey = Callable[[int, int, int], bytes]
"""Makes the key of a row from the queue, the due time and the claim id."""


class Scans(Protocol):
    """A transaction, or a view: reads small rows."""

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Return up to `limit` rows of a range, in order."""


class WaitingRow(Struct, frozen=True):
    """The row that lists a waiting message, alone or with its neighbours."""

    key: bytes
    value: bytes
    kind: Literal["waiting", "scheduled", "ready"]
    """The count of the queue to which the message belongs."""

    @property
    def first(self) -> int:
        """The first claim id that the row lists."""
        return (keys.ready_claim if self.kind == "ready" else keys.due_claim)(self.key)[1]

    @property
    def count(self) -> int:
        """The number of neighbours that the row lists."""
        return keys.run_count(self.value[:4])

    @property
    def due_ms(self) -> int:
        """The due time: store time of a waiting message, wall time of a scheduled message."""
        return keys.due_claim(self.key)[0]

    def lists(self, claim_id: int) -> bool:
        """Return whether the row lists a message."""
        return self.first <= claim_id < self.first + self.count


def find_delay(
    rows: Scans, queue: QueueState, claim_id: int, due_ms: int, epoch_ms: int, *, exact: bool
) -> WaitingRow | None:
    """Return the row of a message that waits for a time; None if no row lists the message.

    `due_ms` is the store time at which the bucket says that the message is due. With `exact`, only
    rows of about this time are read.
    """
    counts, queue_id, wall_ms = queue.counts, queue.queue_id, due_ms + epoch_ms
    if counts.waiting:
        row = (
            _find_due(rows, queue_id, claim_id, keys.retry, (due_ms, due_ms))
            if exact
            else _find_any(rows, queue_id, claim_id, keys.RETRY)
        )
        if row is not None:
            return WaitingRow(*row, "waiting")
    if counts.scheduled:
        spread_ms = max(0, wall_ms - SPREAD_MS), wall_ms + SPREAD_MS
        row = (
            _find_due(rows, queue_id, claim_id, keys.schedule, spread_ms)
            if exact
            else _find_any(rows, queue_id, claim_id, keys.SCHEDULE)
        )
        if row is not None:
            return WaitingRow(*row, "scheduled")
    return None


def _find_due(
    rows: Scans, queue_id: int, claim_id: int, make: DueKey, within_ms: tuple[int, int]
) -> Row | None:
    """Return the row of a message with a due time in a range.

    Each due time in the range takes two short reads, however many messages are due then.
    """
    due_ms, last_ms = within_ms
    stop = make(queue_id, last_ms + 1, 0)
    while next_rows := rows.scan(make(queue_id, due_ms, 0), stop, limit=1):
        due_ms = keys.due_claim(next_rows[0][0])[0]
        start, end = make(queue_id, due_ms, bucket_of(claim_id)), make(queue_id, due_ms, claim_id)
        for key, value in rows.scan(start, keys.successor(end), limit=ROWS_PER_BUCKET)[-1:]:
            if claim_id < keys.due_claim(key)[1] + keys.run_count(value):
                return key, value
        due_ms += 1
    return None


def _find_any(rows: Scans, queue_id: int, claim_id: int, kind: int) -> Row | None:
    """Return the row of a message among all rows of a type."""
    for key, value in all_rows(rows.scan, *keys.of_queue(kind, queue_id)):
        first = keys.due_claim(key)[1]
        if first <= claim_id < first + keys.run_count(value):
            return key, value
    return None


def find_ready(
    rows: Scans, queue: QueueState, claim_id: int, rank: tuple[int, int], *, exact: bool
) -> WaitingRow | None:
    """Return the row of a message that may be claimed now; None if no row lists the message.

    With `exact`, only rows of this rank are read.
    """
    if not queue.counts.ready:
        return None
    start, stop = keys.of_queue(keys.READY, queue.queue_id)
    if exact:
        start = keys.ready(queue.queue_id, rank, bucket_of(claim_id))
        stop = keys.successor(keys.ready(queue.queue_id, rank, claim_id))
    for key, value in all_rows(rows.scan, start, stop):
        row = WaitingRow(key, value, "ready")
        if row.lists(claim_id):
            return row
    return None
