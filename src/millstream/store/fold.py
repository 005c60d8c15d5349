"""The fold: moves deltas into the records that they change, in bounded slices.

A slice is one commit. It writes the rows that the oldest deltas carry, writes the record of every
entity that those deltas changed (as it is now, marked with the sequence that it includes), and
deletes those deltas. A crash before the commit leaves all deltas, after it none of them is needed.
The newest delta always stays: it holds the sequence and the counters.
"""

from __future__ import annotations

from millstream.format.encodings import encode_u64
from millstream.format.entries import coalesce
from millstream.format.keys import FOLD_KEY
from millstream.format.keys import delta as delta_key
from millstream.limits import Limits
from millstream.store.engine import Writer
from millstream.store.entity import tombstone
from millstream.store.state import State


def fold_slice(state: State, writer: Writer, limits: Limits) -> int:
    """Write one slice, without committing it; answers the last delta that it took, 0 if none."""
    state.folded_through(writer.first_seq() - 1)
    through = _slice_end(state, limits)
    if through <= state.folded:
        return 0
    writer.put(coalesce(state.overlay.oldest(through)))
    for key, span in list(state.dirty.items()):
        if span[0] <= through:
            _write(key, span, through, state=state, writer=writer)
    writer.put([(FOLD_KEY, encode_u64(through))])
    writer.delete_range(delta_key(0), delta_key(through + 1))
    return through


def _write(key: bytes, span: list[int], through: int, *, state: State, writer: Writer) -> None:
    """Write an entity's record; of one that is gone, a tombstone while later deltas name it."""
    entity = state.entities[key]
    entity.lsn = state.seq
    if not entity.exists() and span[1] > through:
        writer.put([(key, tombstone(state.seq))])
        span[0] = through + 1
        return
    del state.dirty[key]
    rows = entity.records(key, state.overlay, writer)
    writer.put([(row_key, value) for row_key, value in rows if value is not None])
    writer.delete([row_key for row_key, value in rows if value is None])


def _slice_end(state: State, limits: Limits) -> int:
    """The last delta of a slice that is not too long, too large, or too heavy to write."""
    last = min(state.seq - 1, state.folded + limits.fold_slice_deltas)
    size = 0
    for seq in range(state.folded + 1, last + 1):
        size += state.tail_bytes[seq]
        if size > limits.fold_slice_bytes:
            last = seq
            break
    weight = 0
    for first, key in sorted((span[0], key) for key, span in state.dirty.items()):
        if first > last:
            break
        weight += state.entities[key].weight
        if weight > limits.fold_slice_weight and first > state.folded + 1:
            return first - 1
    return last
