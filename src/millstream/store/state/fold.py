"""The fold: moves deltas into the records that they change, in bounded slices.

A slice is one commit. It writes the rows that the oldest deltas carry, writes the record of every
entity that those deltas changed (marked with the sequence that it includes), and deletes those
deltas. A crash before the commit leaves all deltas, after it none of them is needed. The newest
delta always stays: it holds the sequence and the counters.

Where a slice carries many rows, they are joined outside the mutex: a `Slice` is
made under it and prepared without it, and `write_slice` needs it again.
"""

from __future__ import annotations

from millstream.engine.commit import Row
from millstream.errors import CorruptionError
from millstream.format.encodings import encode_u64
from millstream.format.keys import FOLD_KEY
from millstream.format.keys import delta as delta_key
from millstream.limits import Limits
from millstream.store.commit.draft import Draft
from millstream.store.state.entity import lost, tombstone
from millstream.store.state.state import State

ROWS_PREPARED_MIN = 64


class Slice:
    """A slice on its way: which deltas it takes, and the rows that they carry; made under the mutex."""

    __slots__ = ("_join", "folded", "losses", "rows", "through")

    def __init__(self, state: State, limits: Limits) -> None:
        self._join = state.join_rows
        self.folded = state.folded
        self.through = _slice_end(state, limits)
        self.rows: list[Row] = state.overlay.oldest(self.through)
        self.losses = state.overlay.losses
        """Of the overlay when the rows were read; they count only while it stays the same."""

    @property
    def is_light(self) -> bool:
        """Whether it is written at once, rather than prepared."""
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
) -> int:
    """Write a slice into a draft; answers the last delta that it took, 0 if none.

    Nothing is written of a prepared one if another process has folded since it was planned. Unless
    it `may_lose` an entity whose record is damaged, it raises `CorruptionError` at such a one.
    """
    state.folded_through(writer.first_seq() - 1)
    through = _slice_end(state, limits) if prepared is None else prepared.through
    folded = state.folded if prepared is None else prepared.folded
    if folded != state.folded or not state.folded < through < state.seq:
        return 0
    if prepared is not None and prepared.losses == state.overlay.losses:
        writer.put(prepared.rows)
    else:
        writer.put(state.join_rows(state.overlay.oldest(through)))
    _write_entities(state, writer, through, may_lose=may_lose)
    writer.put([(FOLD_KEY, encode_u64(through))])
    writer.delete_range(delta_key(0), delta_key(through + 1))
    return through


def _write_entities(state: State, writer: Draft, through: int, *, may_lose: bool) -> None:
    """Write the records of entities; of one that is gone, a tombstone while later deltas name it.

    Of one whose record was damaged, a note that it is lost.
    """
    dirty, entities, lsn = state.dirty, state.entities, state.seq
    rows: list[Row] = []
    gone: list[bytes] = []
    for _, key in list(dirty.oldest(through)):
        if key in state.damaged and not _is_readable(state, key, writer, may_lose=may_lose):
            dirty.written(key)
            rows.append((key, lost(lsn)))
            continue
        entity = entities[key]
        entity.lsn = lsn
        if entity.exists():
            dirty.written(key)
            rows.append((key, entity.encode()))
            if entity.is_settled():
                state.settled.append(key)
        elif dirty.last(key) > through:
            rows.append((key, tombstone(lsn)))
        else:
            dirty.written(key)
            gone.append(key)
    writer.put(rows)
    writer.delete(gone)


def _is_readable(state: State, key: bytes, writer: Draft, *, may_lose: bool) -> bool:
    """Whether the record of an entity was only read wrongly before, and can be read now."""
    try:
        state.entity(key, writer)
    except CorruptionError:
        if not may_lose:
            raise
        return False
    return True


def _slice_end(state: State, limits: Limits) -> int:
    """The last delta of a slice that is not too long, too large, or too heavy to write."""
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
