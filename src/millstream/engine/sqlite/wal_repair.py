"""SQLite's write-ahead log after a failed write or sync: its commits are written to disk once more.

When a sync fails, the operating system may mark pages as clean that never reached the disk. A later
sync then succeeds without them, and a power cut would lose them, together with every commit that was
appended behind. So all frames of the log are checked, written again in place, byte by byte the same,
and synced. Readers see no difference.

What lies behind the last commit is cut off: otherwise a commit that failed could come back after a
crash, although readers have seen that it is not there.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import apsw

from millstream.engine.sqlite.file import damaged
from millstream.engine.sqlite.wal import HEADER_BYTES, count_sound, step_bytes

CHUNK_BYTES = 1 << 20


def repair_log(path: Path, *, turn: apsw.Connection, other: apsw.Connection) -> None:
    """Make the log of a file durable again; `turn` keeps writers out while `other` looks.

    Raises `CorruptionError` if frames of commits are missing, and `OSError` if the disk still fails.
    """
    turn.execute("BEGIN IMMEDIATE")
    mode = getattr(apsw, "SQLITE_CHECKPOINT_NOOP", apsw.SQLITE_CHECKPOINT_PASSIVE)
    frames = max(0, other.wal_checkpoint(mode=mode)[0])
    log = Path(f"{path}-wal")
    sound = count_sound(log) if frames else 0
    if sound < frames:
        raise damaged(
            path, f"only {sound:,} of {frames:,} frames of the write-ahead log are as written"
        )
    step = step_bytes(turn.pragma("page_size"))
    _write_again(log, HEADER_BYTES + frames * step if frames else 0)


def _write_again(log: Path, kept_bytes: int) -> None:
    """Cut a file, then write what is left of it in place, and sync it."""
    with log.open("r+b", buffering=0) as file:
        file.truncate(kept_bytes)
        for place in range(0, kept_bytes, CHUNK_BYTES):
            file.seek(place)
            data = file.read(min(CHUNK_BYTES, kept_bytes - place))
            file.seek(place)
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
