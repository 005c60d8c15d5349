"""The lineage of logs: rows of forks, former logs of a name, and marks of a log's running hash.

fork, 24 bytes, little-endian
0   u64  the parent's log id
8   u64  the fork point: records below lie in the parent
16  u64  merged: own records below are in the parent again; 0, or above the fork point

marks: 40 bytes each, ascending, up to 256 in a row
0   u64  offset, little-endian
8   32   the hash of the log up to there (`millstream.replica.chain`)

former, 16 bytes, little-endian
0   u64  the offset below which both logs have the same records
8   u64  merged: records of the former log below are in the log again; 0, or above the first offset
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NamedTuple

from millstream.errors import CorruptionError

MARKS_PER_ROW = 256
"""Maximum of marks in a row: adding a mark writes the complete row."""

_FORK = struct.Struct("<QQQ")
_MARK = struct.Struct("<Q32s")
_FORMER = struct.Struct("<QQ")


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


class Former(NamedTuple):
    """A log that had the name of another log before it was set aside."""

    equal_below: int
    """The offset below which both logs have the same records."""
    merged: int = 0


def encode_former(former: Former) -> bytes:
    """Encode the row of a former log."""
    return _FORMER.pack(*former)


def decode_former(data: bytes) -> Former:
    """Decode the row of a former log."""
    if len(data) != _FORMER.size:
        raise CorruptionError(
            f"a former log of {len(data)} bytes, not {_FORMER.size}", what="former", where=len(data)
        )
    return Former(*_FORMER.unpack(data))


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
