"""Room in the file of SQLite's write-ahead log, ahead of what is written there.

A file that grows has its new size and blocks synced with every commit. Measured on ext4: a page that is
written behind the end is durable after 125 µs, one that is written over zeros after 58 µs (2026-11). So
the file is made longer by many zeros at once, as part of a commit. SQLite takes a log to end where a
frame does not continue the chain of its checksums, as zeros never do; a log that was started anew has
old frames there as well.

It is called by the writer inside its transaction: no frame is written meanwhile, in any process.
"""

from __future__ import annotations

import os

from millstream.engine.sqlite.wal import HEADER_BYTES

START_BYTES = 64 * 1024
"""A shorter log is left alone: most stores that are opened write little."""

AHEAD_BYTES = 512 * 1024
"""By how much the file is made longer at once."""

LOW_BYTES = 16 * 1024
"""What is left when that is done; most commits are smaller."""


LARGE_BYTES = 64 * 1024
"""After a commit as large nothing is done: beside its bytes, those of zeros would weigh too much."""


class LogRoom:
    """How far one process knows the file of a write-ahead log to reach."""

    __slots__ = ("_end", "_grown", "_path", "_size")

    def __init__(self, path: str) -> None:
        self._path = f"{path}-wal"
        self._end = self._grown = 0
        self._size = START_BYTES

    def note(self, pages: int, step_bytes: int) -> None:
        """A commit has left the log with so many pages; a frame has so many bytes with its page."""
        end = HEADER_BYTES + pages * step_bytes
        if end < self._end:
            self._size = 0  # it was started anew: its file may have been cut
        self._grown = end - self._end
        self._end = end

    def ensure(self) -> None:
        """Before a commit: see that the file reaches beyond it, as a rule."""
        if self._end + LOW_BYTES > self._size and self._grown < LARGE_BYTES:
            self._extend()

    def _extend(self) -> None:
        try:
            file = os.open(self._path, os.O_WRONLY)
            try:
                size = os.fstat(file).st_size
                if self._end >= START_BYTES - LOW_BYTES and size < self._end + LOW_BYTES:
                    size += os.pwrite(file, bytes(AHEAD_BYTES), size)
            finally:
                os.close(file)
        except OSError:
            size = self._end + AHEAD_BYTES  # the disk is full, perhaps: the commit itself will tell
        self._size = max(size, START_BYTES)
