"""A delta: everything small that one commit changed, as one row.

`changes` are transitions of entities (heads, cursors, producers, buckets); `puts` are small rows
that ride along until the fold moves them to their base tables; `drops` are rows and ranges that the
same commit deleted, so that a replay forgets them as well. Sequences are contiguous and never reused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from millstream.engine.protocol import Snapshot
from millstream.errors import CorruptionError
from millstream.format import keys

C = TypeVar("C")

ROWS_PER_SCAN = 1_024


class Delta(Struct, Generic[C], array_like=True):
    """One commit: its changes as they are written, or as they are read."""

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
    """Half-open key ranges, dropped before `puts` are put; a single key is the range up to itself
    plus a zero byte."""


StoredDelta = Delta[Raw]
"""One commit, as it is read: each change is decoded by the entity that it belongs to."""

_decoder = msgspec.msgpack.Decoder(StoredDelta)
encode = msgspec.msgpack.Encoder().encode


def decode(seq: int, data: bytes) -> StoredDelta:
    """Read a delta's row; it must carry the sequence that its key names."""
    try:
        found = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"delta {seq}: {error}", what="delta", where=seq) from error
    if found.seq != seq:
        raise CorruptionError(f"delta {seq} says it is {found.seq}", what="delta", where=seq)
    return found


def read(snapshot: Snapshot, after: int, through: int) -> Iterator[tuple[StoredDelta, int]]:
    """Every delta with after < seq <= through, in order, with its size; a missing one is damage."""
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
