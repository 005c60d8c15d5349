"""Where logs come from: the rows of forks, and those of the marks of a log's running hash.

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
"""A row of marks is written whole when one is added."""

SETBACKS_KEPT = 64
"""Of the times at which a log's end went back; older ones are joined."""

_FORK = struct.Struct("<QQQ")
_MARK = struct.Struct("<Q32s")
_SET_BACK = struct.Struct("<QQ")

SetBack = tuple[int, int]
"""How often a log's end had gone back, and to which offset it went then."""


class Fork(NamedTuple):
    """Where the records of a fork lie that it has not appended itself."""

    parent_id: int
    point: int
    merged: int = 0


def encode_fork(fork: Fork) -> bytes:
    """The row of a fork."""
    return _FORK.pack(*fork)


def decode_fork(data: bytes) -> Fork:
    """Read the row of a fork."""
    if len(data) != _FORK.size:
        raise CorruptionError(
            f"a fork of {len(data)} bytes, not {_FORK.size}", what="fork", where=len(data)
        )
    return Fork(*_FORK.unpack(data))


def encode_marks(marks: list[tuple[int, bytes]]) -> bytes:
    """A row of marks: offsets and hashes."""
    return b"".join(_MARK.pack(offset, digest) for offset, digest in marks)


def decode_marks(data: bytes) -> list[tuple[int, bytes]]:
    """Read a row of marks."""
    if not data or len(data) % _MARK.size:
        raise CorruptionError(f"a row of marks of {len(data)} bytes", what="marks", where=len(data))
    found = list(_MARK.iter_unpack(data))
    if any(later[0] <= one[0] for one, later in pairwise(found)):
        raise CorruptionError("marks that do not ascend", what="marks", where=0)
    return found


def with_set_back(before: list[SetBack], number: int, at: int) -> list[SetBack]:
    """Add one; what it makes superfluous is left out.

    A reader asks for the lowest offset since the number that it knows. So an earlier one that went
    no lower says nothing more; of too many, the oldest are taken for one.
    """
    found = [one for one in before if one[1] < at]
    found.append((number, at))
    if len(found) > SETBACKS_KEPT:
        found[:2] = [(found[1][0], found[0][1])]
    return found


def encode_set_back(found: list[SetBack]) -> bytes:
    """The row that says when a log's end went back, and where to."""
    return b"".join(_SET_BACK.pack(*one) for one in found)


def decode_set_back(data: bytes) -> list[SetBack]:
    """Read the row that says when a log's end went back."""
    if not data or len(data) % _SET_BACK.size:
        raise CorruptionError(
            f"a row of setbacks of {len(data)} bytes", what="set back", where=len(data)
        )
    found = list(_SET_BACK.iter_unpack(data))
    if any(later <= one for pair in pairwise(found) for one, later in zip(*pair, strict=True)):
        raise CorruptionError("setbacks that do not ascend", what="set back", where=0)
    return found
