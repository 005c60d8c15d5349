"""Reads of unfolded records from memory, without a lock and without the disk.

An event loop may call `held_records`. A thread reads records that are not in memory
(`reader.read_blocks`).

Rooms get messages that other processes stored in this way. Before, the loop woke a thread for each
room: with that thread, and a task for each frame, p95 between two servers was 14.6 to 16.0 ms
instead of 7.5 to 12.7 (`bench rooms`, rooms_cross).
"""

from __future__ import annotations

from millstream.engine.commit import Row
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.log.model.head import Bounds
from millstream.log.reading.reader import RowMoved, find_blocks
from millstream.record import Record
from millstream.store.state.view import Rows
from millstream.store.store import Store


class _NotHeld(Exception):
    """A row is not in memory."""


class _NoDisk:
    """A snapshot without rows, which refuses reads."""

    def get(self, key: bytes) -> bytes | None:
        """Refuse."""
        raise _NotHeld

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Refuse."""
        raise _NotHeld

    def last_seq(self) -> int:
        """Refuse."""
        raise _NotHeld


_NO_DISK = _NoDisk()


def held_records(
    store: Store, log: str, *, start: int, stop: int, bytes_max: int
) -> list[Record] | None:
    """Return the first records of [start, stop) as readers see them now.

    Returns None if a row is not in memory, or if a concurrent commit drops rows.
    """
    overlay = store.state.overlay
    mark = overlay.mark()
    log_id: int = store.views.get(keys.log_name(log), 0)
    bounds: Bounds | None = store.views.get(keys.head(log_id)) if log_id else None
    if bounds is None or not bounds.start <= start < bounds.end:
        return None
    try:
        blocks = find_blocks(
            Rows(overlay, _NO_DISK),
            log_id,
            log,
            start=start,
            stop=min(stop, bounds.end),
            bytes_max=bytes_max,
        )
    except (_NotHeld, RowMoved, CorruptionError):
        return None
    if not overlay.is_since(mark):
        return None
    return [record for block in blocks for record in block.records()]
