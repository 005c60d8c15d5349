"""The lineage of logs: rows of forks, marks of a log's running hash, and setbacks.

fork, 24 bytes, little-endian
0   u64  the parent's log id
8   u64  the fork point: records below lie in the parent
16  u64  merged: own records below are in the parent again; 0, or above the fork point

marks: 40 bytes each, ascending, up to 256 in a row
0   u64  offset, little-endian
8   32   the hash of the log up to there (`millstream.replica.chain`)

set back: 16 bytes each, both numbers ascending, up to 64 in a row
0   u64  how often the log's end had gone back then, little-endian
8   u64  the offset that it went back to
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NamedTuple

from millstream.errors import CorruptionError

MARKS_PER_ROW = 256
"""Maximum of marks in a row: adding a mark writes the complete row."""

SETBACKS_KEPT = 64
"""Maximum of setbacks in a row; older setbacks are joined."""

_FORK = struct.Struct("<QQQ")
_MARK = struct.Struct("<Q32s")
_SET_BACK = struct.Struct("<QQ")

SetBack = tuple[int, int]
"""The number of a setback, and the offset to which the log's end went back."""


class Fork(NamedTuple):
    """The place of a fork's first records: its parent, the fork point, and the merged offset."""

    parent_id: int
    point: int
    merged: int = 0


def encode_fork(fork: Fork) -> bytes:
    """Encode the row of a fork."""
    return _FORK.pack(*fork)


def decode_fork(data: bytes) -> Fork:
    """Decode the row of a fork."""
    if len(data) != _FORK.size:
        raise CorruptionError(
            f"a fork of {len(data)} bytes, not {_FORK.size}", what="fork", where=len(data)
        )
    return Fork(*_FORK.unpack(data))


def encode_marks(marks: list[tuple[int, bytes]]) -> bytes:
    """Encode a row of marks: offsets and hashes."""
    return b"".join(_MARK.pack(offset, digest) for offset, digest in marks)


def decode_marks(data: bytes) -> list[tuple[int, bytes]]:
    """Decode a row of marks."""
    if not data or len(data) % _MARK.size:
        raise CorruptionError(f"a row of marks of {len(data)} bytes", what="marks", where=len(data))
    marks = list(_MARK.iter_unpack(data))
    if any(later[0] <= earlier[0] for earlier, later in pairwise(marks)):
        raise CorruptionError("marks that do not ascend", what="marks", where=0)
    return marks


def with_set_back(before: list[SetBack], number: int, at: int) -> list[SetBack]:
    """Add a setback, and drop superfluous ones.

    A reader asks for the lowest offset since the last setback that it knows. So an earlier setback to
    the same or a higher offset is superfluous. Beyond the maximum, the two oldest are joined.
    """
    setbacks = [setback for setback in before if setback[1] < at]
    setbacks.append((number, at))
    if len(setbacks) > SETBACKS_KEPT:
        setbacks[:2] = [(setbacks[1][0], setbacks[0][1])]
    return setbacks


def encode_set_back(setbacks: list[SetBack]) -> bytes:
    """Encode the row of a log's setbacks."""
    return b"".join(_SET_BACK.pack(*setback) for setback in setbacks)


def decode_set_back(data: bytes) -> list[SetBack]:
    """Decode the row of a log's setbacks."""
    if not data or len(data) % _SET_BACK.size:
        raise CorruptionError(
            f"a row of setbacks of {len(data)} bytes", what="set back", where=len(data)
        )
    setbacks = list(_SET_BACK.iter_unpack(data))
    if any(
        later <= earlier
        for pair in pairwise(setbacks)
        for earlier, later in zip(*pair, strict=True)
    ):
        raise CorruptionError("setbacks that do not ascend", what="set back", where=0)
    return setbacks
