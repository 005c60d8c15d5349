"""Records that are in memory: of commits that were not folded yet. No lock, no disk.

An event loop may ask this. What it does not answer is read by a thread (`reader.read_blocks`).
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
    """A snapshot that cannot be asked."""

    def get(self, key: bytes) -> bytes | None:
        """Refuse."""
        raise _NotHeld

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Refuse."""
        raise _NotHeld

    def last_seq(self) -> int:
        """Refuse."""
        raise _NotHeld

    def first_seq(self) -> int:
        """Refuse."""
        raise _NotHeld


_NO_DISK = _NoDisk()


def held_records(
    store: Store, log: str, *, start: int, stop: int, bytes_max: int
) -> list[Record] | None:
    """Some of the records in [start, stop), from the first on, as readers see them now.

    None if not all that is needed for an answer is in memory, or it cannot be told.
    """
    overlay = store.state.overlay
    mark = overlay.mark()
    log_id = store.views.get(keys.log_name(log))
    bounds: Bounds | None = store.views.get(keys.head(log_id)) if log_id else None
    if bounds is None or not bounds.start <= start < bounds.end:
        return None
    try:
        found = find_blocks(
            Rows(overlay, _NO_DISK),
            log_id,
            log,
            start=start,
            stop=min(stop, bounds.end),
            bytes_max=bytes_max,
        )
    except (_NotHeld, RowMoved, CorruptionError):
        return None
    return [one for block in found for one in block.records()] if overlay.is_since(mark) else None
