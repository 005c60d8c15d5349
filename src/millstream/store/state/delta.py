"""A delta: the small changes of a commit, as one row.

`changes` are transitions of entities (heads, cursors, producers, buckets). `puts` are small rows, which
the fold later moves to their base tables. `drops` are rows and ranges that the commit deleted, so that
a replay deletes the same rows. Sequences are contiguous and never reused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from millstream.engine.commit import Row
from millstream.engine.protocol import Snapshot
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.format.encodings import U64, Reader, encode_u64

C = TypeVar("C")

ROWS_PER_SCAN = 1_024


class Delta(Struct, Generic[C], array_like=True, gc=False):
    """A commit, with changes as objects (to write) or as raw bytes (to read)."""

    seq: int
    wall_ms: int
    store_ms: int
    boot_ms: int
    boot_id: str
    next_id: int
    next_entity: int
    changes: list[tuple[bytes, C]]
    puts: list[tuple[bytes, bytes]]
    drops: list[tuple[bytes, bytes]]
    """Half-open key ranges, dropped before the puts; the range of a single key ends at the key plus a
    zero byte."""


StoredDelta = Delta[Raw]
"""A commit as it is read; the class of each entity decodes its changes."""

_decoder = msgspec.msgpack.Decoder(StoredDelta)
encode = msgspec.msgpack.Encoder().encode


def decode(seq: int, data: bytes) -> StoredDelta:
    """Decode the row of a delta, and check that its sequence equals that of its key."""
    try:
        delta = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"delta {seq}: {error}", what="delta", where=seq) from error
    if delta.seq != seq:
        raise CorruptionError(f"delta {seq} says it is {delta.seq}", what="delta", where=seq)
    return delta


def read(snapshot: Snapshot, after: int, through: int) -> Iterator[tuple[StoredDelta, int]]:
    """Yield the deltas with after < seq <= through, with their sizes; raise if a delta is missing."""
    expected = after + 1
    while expected <= through:
        rows = snapshot.scan(keys.delta(expected), keys.delta(through + 1), limit=ROWS_PER_SCAN)
        for key, value in rows:
            seq = keys.number(key)
            if seq != expected:
                break
            yield decode(seq, value), len(value)
            expected += 1
        else:
            if rows:
                continue
        raise CorruptionError(
            f"delta {expected} is missing though {through} exists", what="delta", where=expected
        )


def fold_position(snapshot: Snapshot) -> int:
    """Return the sequence of the last folded delta; 0 before the first fold."""
    data = snapshot.get(keys.FOLD_KEY)
    if data is None:
        return 0
    reader = Reader(data, "fold position")
    folded = reader.number(U64)
    reader.finish()
    return folded


def fold_row(through: int) -> Row:
    """Return the row that says that the deltas up to `through` are folded."""
    return keys.FOLD_KEY, encode_u64(through)
