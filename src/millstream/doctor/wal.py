"""SQLite's write-ahead log, frame by frame: SQLite silently ignores all that lies behind damage.

Commits that have not been copied into the file yet lie here. Each frame carries a checksum over all
frames before it; where the chain breaks, SQLite takes the log to end there. That is right for the
last transaction, which a crash may have cut off before it was acknowledged. If more transactions
follow the break, they were acknowledged once, and are lost.

    header  32 bytes, big-endian: magic, version, page size, sequence, two salts, two checksums
    frame   24 bytes: page, size of the file after a commit or 0, two salts, two checksums; then the page
"""

from __future__ import annotations

import struct
import sys
from array import array
from pathlib import Path
from typing import BinaryIO, NamedTuple

from millstream.doctor.findings import Findings

HEADER_BYTES = 32
FRAME_BYTES = 24
TRIES = 3
"""A log that is started anew while it is read is looked at again."""

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_LITTLE, _BIG = 0x377F0682, 0x377F0683


class Break(NamedTuple):
    """Where the chain of checksums ends too early."""

    frame: int
    frames: int
    transactions_behind: int


def check_wal(path: Path, findings: Findings) -> None:
    """Report commits that SQLite no longer sees because the log is damaged before them."""
    found = find_break(path)
    if found is not None and found.transactions_behind > 1:
        findings.add(
            "file",
            f"the write-ahead log is damaged at frame {found.frame} of {found.frames}: SQLite "
            f"ignores what lies behind, and at least {found.transactions_behind - 1} commits "
            "that were acknowledged are lost",
        )


def find_break(path: Path) -> Break | None:
    """Read the log to its end; None if the chain holds, or if there is no log."""
    for _ in range(TRIES):
        try:
            with path.open("rb") as file:
                before = file.read(HEADER_BYTES)
                if len(before) < HEADER_BYTES:
                    return None
                found = _walk(file, before, path.stat().st_size - HEADER_BYTES)
                file.seek(0)
                if file.read(HEADER_BYTES) == before:
                    return found
        except FileNotFoundError:
            return None
    return None


def _walk(file: BinaryIO, header: bytes, size: int) -> Break | None:
    magic, _, page_bytes, _, *salts, first, second = _HEADER.unpack(header)
    swap = (magic == _BIG) != (sys.byteorder == "big")
    sums = _add((0, 0), header[:24], swap=swap)
    sound = magic in (_LITTLE, _BIG) and sums == (first, second)
    if page_bytes not in {512 << n for n in range(8)}:
        return None
    frames = size // (FRAME_BYTES + page_bytes)
    broken, behind = (-1, 0) if sound else (0, 0)
    for number in range(frames):
        head, page = file.read(FRAME_BYTES), file.read(page_bytes)
        if len(page) < page_bytes:
            break
        _, commit, *rest = _FRAME.unpack(head)
        if broken == 0 and number == 0:
            salts = rest[:2]  # those of the header cannot be trusted
        ours = rest[:2] == salts
        if broken < 0:
            sums = _add(_add(sums, head[:8], swap=swap), page, swap=swap)
            if not ours or sums != (rest[2], rest[3]):
                broken = number
        if broken >= 0 and ours and commit:
            behind += 1
    return Break(broken, frames, behind) if behind else None


def _add(sums: tuple[int, int], data: bytes, *, swap: bool) -> tuple[int, int]:
    words = array("I", data)
    if swap:
        words.byteswap()
    first, second = sums
    for index in range(0, len(words), 2):
        first = (first + words[index] + second) & 0xFFFFFFFF
        second = (second + words[index + 1] + first) & 0xFFFFFFFF
    return first, second
