"""The fold: moves deltas into records, in bounded slices.

A slice is one commit. It writes the rows of the oldest deltas, writes the record of every entity that
these deltas changed (marked with the included sequence), and deletes these deltas. A crash before the
commit leaves all deltas; a crash after the commit loses nothing, since the records are complete. The
newest delta always stays, because it holds the sequence and the counters.

A slice with many rows is prepared without the mutex: a `Slice` is made under the mutex, prepared without
it, and written under it again.

Writing every record in its own commit would need no fold, but each commit would then write several
scattered rows: one row per commit is cheaper, and a record that changes often is written once per slice.
Slices are bounded so that a waiting commit never waits long for the fold.
"""

from __future__ import annotations

from millstream.engine.commit import Row
from millstream.errors import CorruptionError
from millstream.format.keys import delta as delta_key
from millstream.limits import Limits
from millstream.store.commit.draft import Draft
from millstream.store.state import delta as deltas
from millstream.store.state.entity import lost, tombstone
from millstream.store.state.state import State

ROWS_PREPARED_MIN = 64


class Slice:
    """A planned slice: the range of its deltas, and their rows; made under the mutex."""

    __slots__ = ("_join", "folded", "losses", "rows", "through")

    def __init__(self, state: State, limits: Limits) -> None:
        self._join = state.join_rows
        self.folded = state.folded
        self.through = _slice_end(state, limits)
        self.rows: list[Row] = state.overlay.oldest(self.through)
        self.losses = state.overlay.losses
        """The losses of the overlay at the time of the read; if they differ later, the rows are stale."""

    @property
    def is_light(self) -> bool:
        """Whether the slice is so small that it needs no preparation."""
        return len(self.rows) < ROWS_PREPARED_MIN

    def prepare(self) -> None:
        """Join rows into fewer rows; needs no lock."""
        self.rows = self._join(self.rows)


def write_slice(
    state: State,
    writer: Draft,
    limits: Limits,
    prepared: Slice | None = None,
    *,
    may_lose: bool = True,
) -> tuple[int, list[bytes]]:
    """Write a slice into a draft; return the sequence of its last delta, and the keys of its entities.

    The sequence is 0 for an empty slice. The records of the entities are up to date once the slice is
    durable. A prepared slice is dropped if another process has folded meanwhile. An entity with a damaged
    record is marked as lost with `may_lose`, and raises `CorruptionError` without.
    """
    state.folded_through(deltas.fold_position(writer))
    through = _slice_end(state, limits) if prepared is None else prepared.through
    folded = state.folded if prepared is None else prepared.folded
    if folded != state.folded or not state.folded < through < state.seq:
        return 0, []
    if prepared is not None and prepared.losses == state.overlay.losses:
        writer.put(prepared.rows)
    else:
        writer.put(state.join_rows(state.overlay.oldest(through)))
    written = _write_entities(state, writer, through, may_lose=may_lose)
    writer.put([deltas.fold_row(through)])
    writer.delete_range(delta_key(0), delta_key(through + 1))
    return through, written


def _write_entities(state: State, writer: Draft, through: int, *, may_lose: bool) -> list[bytes]:
    """Write the records of unfolded entities; return the keys of entities without unfolded changes.

    A removed entity gets a tombstone while later deltas name it. A damaged entity is marked as lost.
    """
    dirty, entities, lsn = state.dirty, state.entities, state.seq
    rows: list[Row] = []
    gone: list[bytes] = []
    written: list[bytes] = []
    for _, key in dirty.oldest(through):
        if key in state.damaged and not _is_readable(state, key, writer, may_lose=may_lose):
            written.append(key)
            rows.append((key, lost(lsn)))
            continue
        entity = entities[key]
        entity.lsn = lsn
        if entity.exists():
            written.append(key)
            rows.append((key, entity.encode()))
        elif dirty.last(key) > through:
            rows.append((key, tombstone(lsn)))
        else:
            written.append(key)
            gone.append(key)
    writer.put(rows)
    writer.delete(gone)
    return written


def _is_readable(state: State, key: bytes, writer: Draft, *, may_lose: bool) -> bool:
    """Return whether the record of a damaged entity can be read now."""
    try:
        state.entity(key, writer)
    except CorruptionError:
        if not may_lose:
            raise
        return False
    return True


def _slice_end(state: State, limits: Limits) -> int:
    """Return the last delta of a slice within the limits of length, bytes and weight."""
    last = min(state.seq - 1, state.folded + limits.fold_slice_deltas)
    size = 0
    for seq in range(state.folded + 1, last + 1):
        size += state.tail_bytes[seq]
        if size > limits.fold_slice_bytes:
            last = seq
            break
    effort = 0
    for first, key in state.dirty.oldest(last):
        effort += 1 if key in state.damaged else state.entities[key].effort()
        if effort > limits.fold_slice_weight and first > state.folded + 1:
            return first - 1
    return last
