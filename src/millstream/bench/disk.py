"""The disk: a raw file as the limit of what is durable, and an engine on a disk that is slower.

Syncs on the machines where this is developed are unusually cheap; real disks take milliseconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import sleep

from millstream.engine.open import open_engine
from millstream.engine.protocol import Engine
from millstream.format.block import checksum
from millstream.testing.recording import recorded


def open_slow_engine(path: str | os.PathLike[str], *, sync_delay_s: float) -> Engine:
    """The engine of a file; every commit takes so many seconds longer."""
    engine = open_engine(path)
    return recorded(engine, lambda _: sleep(sync_delay_s)) if sync_delay_s else engine


class RawFile:
    """Frames of length, checksum and bytes, each synced: nothing durable can be faster."""

    def __init__(self, directory: Path, *, sync_delay_s: float = 0.0) -> None:
        self._path = directory / "raw.bin"
        self._delay_s = sync_delay_s
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND
        self._file = os.open(self._path, flags, 0o644)
        self._size = 0

    def append(self, data: bytes) -> None:
        """Write one frame and return when it is on disk."""
        frame = len(data).to_bytes(4, "little") + checksum(data).to_bytes(4, "little") + data
        os.write(self._file, frame)
        os.fdatasync(self._file)
        if self._delay_s:
            sleep(self._delay_s)
        self._size += len(frame)
        if self._size > 2**30:
            os.ftruncate(self._file, 0)
            self._size = 0

    def close(self) -> None:
        """Remove the file."""
        os.close(self._file)
        self._path.unlink()
