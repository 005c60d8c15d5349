"""The fold: moves deltas into the records that they change, in bounded slices.

A slice is one commit. It writes the rows that the oldest deltas carry, writes the record of every
entity that those deltas changed (marked with the sequence that it includes), and deletes those
deltas. A crash before the commit leaves all deltas, after it none of them is needed. The newest
delta always stays: it holds the sequence and the counters.

What is much work to write is prepared beside running commits, from copies: `plan` under the mutex,
`prepare` without it, `write_slice` under the mutex again. An entity that has changed since its copy
was made stays dirty from there on; one that was removed or made anew is written as it is now.
"""

from __future__ import annotations

from typing import Any

from millstream.format.encodings import encode_u64
from millstream.format.entries import coalesce
from millstream.format.keys import FOLD_KEY
from millstream.format.keys import delta as delta_key
from millstream.limits import Limits
from millstream.store.engine import Row, Snapshot, Writer
from millstream.store.entity import Entity, tombstone
from millstream.store.overlay import Overlay
from millstream.store.state import State

ROWS_PREPARED_MIN = 64


class Copy:
    """A heavy entity as it was when its slice was planned, and the rows that it becomes."""

    __slots__ = ("_copy", "_entity", "_noted", "rows", "seq")

    def __init__(self, entity: Entity, seq: int) -> None:
        self._entity = entity
        self._copy = entity.frozen()
        self._copy.lsn = seq
        self._noted: dict[str, Any] = {"lsn": seq}
        self.seq = seq
        self.rows: list[tuple[bytes, bytes | None]] = []

    def prepare(self, key: bytes, overlay: Overlay, snapshot: Snapshot) -> None:
        """Make the rows; needs no lock."""
        copy = self._copy
        before = {name: getattr(copy, name) for name in copy.__struct_fields__}
        self.rows = copy.records(key, overlay, snapshot)
        for name, value in before.items():
            if getattr(copy, name) is not value:
                self._noted[name] = getattr(copy, name)

    def is_of(self, entity: Entity) -> bool:
        """Whether this very entity was copied, and not one that is in its place now."""
        return self._entity is entity

    def settle(self) -> None:
        """Let the entity know what `records` has noted in its copy."""
        for name, value in self._noted.items():
            setattr(self._entity, name, value)


class Slice:
    """A slice on its way: which deltas it takes, and what is prepared for it."""

    __slots__ = ("copies", "folded", "losses", "rows", "through")

    def __init__(self, folded: int, through: int) -> None:
        self.folded = folded
        self.through = through
        self.copies: dict[bytes, Copy] = {}
        self.rows: list[Row] = []
        """What its deltas carry, and the fold moves home."""
        self.losses = -1
        """Of the overlay when these rows were read; they count only while it stays the same."""

    @property
    def is_light(self) -> bool:
        """Whether it is written at once, rather than prepared."""
        return not self.copies and len(self.rows) < ROWS_PREPARED_MIN

    def prepare(self, overlay: Overlay, snapshot: Snapshot) -> None:
        """Make the rows of the copies, from a snapshot that was taken after them."""
        self.rows = coalesce(self.rows)
        for key, copy in self.copies.items():
            copy.prepare(key, overlay, snapshot)
            overlay.pause()


def plan(state: State, limits: Limits) -> Slice:
    """Decide where a slice ends, and copy what is much work to write; under the mutex."""
    found = Slice(state.folded, _slice_end(state, limits))
    for key, span in state.dirty.items():
        if span[0] <= found.through:
            entity = state.entities[key]
            if entity.weight > 1 and entity.exists():
                found.copies[key] = Copy(entity, state.seq)
    found.rows, found.losses = state.overlay.oldest(found.through), state.overlay.losses
    return found


def write_slice(state: State, writer: Writer, limits: Limits, prepared: Slice | None = None) -> int:
    """Write a slice, without committing it; answers the last delta that it took, 0 if none.

    Nothing is written of a prepared one if somebody has folded since it was planned.
    """
    state.folded_through(writer.first_seq() - 1)
    found = prepared or Slice(state.folded, _slice_end(state, limits))
    through = found.through
    if found.folded != state.folded or not state.folded < through < state.seq:
        return 0
    if found.losses == state.overlay.losses:
        writer.put(found.rows)
    else:
        writer.put(coalesce(state.overlay.oldest(through)))
    for key, span in list(state.dirty.items()):
        if span[0] <= through:
            copy = found.copies.get(key)
            if copy is not None and copy.is_of(state.entities[key]):
                _write_copy(key, span, copy, state=state, writer=writer)
            else:
                _write(key, span, through, state=state, writer=writer)
    writer.put([(FOLD_KEY, encode_u64(through))])
    writer.delete_range(delta_key(0), delta_key(through + 1))
    return through


def _write_copy(key: bytes, span: list[int], copy: Copy, *, state: State, writer: Writer) -> None:
    """Write what was prepared; later changes stay in their deltas."""
    if span[1] > copy.seq:
        span[0] = copy.seq + 1
    else:
        del state.dirty[key]
    copy.settle()
    _put(copy.rows, writer)


def _write(key: bytes, span: list[int], through: int, *, state: State, writer: Writer) -> None:
    """Write an entity's record; of one that is gone, a tombstone while later deltas name it."""
    entity = state.entities[key]
    entity.lsn = state.seq
    if not entity.exists() and span[1] > through:
        writer.put([(key, tombstone(state.seq))])
        span[0] = through + 1
        return
    del state.dirty[key]
    _put(entity.records(key, state.overlay, writer), writer)


def _put(rows: list[tuple[bytes, bytes | None]], writer: Writer) -> None:
    writer.put([(key, value) for key, value in rows if value is not None])
    writer.delete([key for key, value in rows if value is None])


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
