"""Checkpoints of SQLite's write-ahead log (WAL): when it is copied, restarted, and preallocated.

A WAL that is written from its start again is synced faster than a growing WAL. If writers add little
during a checkpoint, each checkpoint restarts the WAL. Faster writers let the WAL grow to its maximum
first.

Preallocation. The file of a WAL that grows has its new size and blocks synced with every commit.
Measured on ext4: a page written behind the end of the file is durable after 125 µs, a page written
over zeros after 58 µs (2026-11). So `WalPreallocation` adds many zeros at once, as part of a commit.
SQLite takes a WAL to end at the first frame that does not continue the chain of checksums. Zeros never
continue it, and a restarted WAL has old frames there anyway.

SQLite owns this file, so the gain must justify the zeros. Without them,
`bench core --only publish_one` falls from 0.68 to 0.55 of the speed of a raw file (medians of four
runs in turns on a busy machine), and its median latency rises from 0.4 to 3.8 ms (2026-11).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import apsw

from millstream.engine.sqlite.options import SqliteOptions
from millstream.engine.sqlite.wal import HEADER_BYTES

COPIES_MAX = 4
"""How often the WAL is copied beside running writers before writers are excluded."""

START_BYTES = 64 * 1024
"""A shorter WAL is not preallocated: most stores that are opened write little."""

AHEAD_BYTES = 512 * 1024
"""Bytes of zeros that a preallocation adds."""

_ZEROS = bytes(AHEAD_BYTES)
"""Shared by all preallocations: to fill new memory with zeros each time took 0.2 µs per commit."""

LOW_BYTES = 16 * 1024
"""Preallocated bytes below which the next preallocation is made; most commits are smaller."""

LARGE_BYTES = 64 * 1024
"""A commit of this size is followed by no preallocation: the zeros would cost too much beside it."""

READERS_S = 0.1
"""How long a checkpoint keeps writers waiting for a reader, such as a backup; the next one tries again."""

LONG_WAL = 4
"""A WAL of so many times `wal_bytes_reset` is worth a longer wait: readers that always follow each other
would let it grow without end."""

Copy = Callable[[int], tuple[int, int] | None]
"""Runs a checkpoint in a mode of SQLite; returns bytes in the WAL and bytes copied, or None if busy."""


class Checkpoints:
    """The size of the WAL, and the bytes that checkpoints have copied."""

    def __init__(self, options: SqliteOptions) -> None:
        self._options = options
        self.wal_bytes = 0
        self._copied_bytes = 0
        self._noticed_bytes = 0
        self._copy_from_bytes = options.wal_bytes_checkpoint

    def is_due(self) -> bool:
        """True if the WAL has grown enough for a checkpoint."""
        return self.wal_bytes - self._copied_bytes >= self._copy_from_bytes

    def committed(self, wal_bytes: int) -> bool:
        """Note the size of the WAL after a commit of this process; True if a checkpoint is due."""
        if wal_bytes < self.wal_bytes:
            self._copied_bytes = 0
        self.wal_bytes = wal_bytes
        return wal_bytes - self._copied_bytes >= self._copy_from_bytes

    def notice(self, file_bytes: int) -> None:
        """Note the size of the WAL's file: other processes may have written it and ended."""
        if file_bytes - self._noticed_bytes >= self._options.wal_bytes_checkpoint:
            self._noticed_bytes = file_bytes
            self.wal_bytes = max(file_bytes, self.wal_bytes)

    def reader_wait_s(self) -> float:
        """Return how long a checkpoint may wait for readers."""
        options = self._options
        is_long = self.wal_bytes >= LONG_WAL * options.wal_bytes_reset
        return options.busy_timeout_ms / 1000 if is_long else READERS_S

    def run(self, copy: Copy, alone: AbstractContextManager[object]) -> None:
        """Copy the WAL beside writers, then the remainder, if it is small, without writers."""
        if self._copy_beside(copy):
            with alone:
                self._note(copy(apsw.SQLITE_CHECKPOINT_RESTART))

    def _copy_beside(self, copy: Copy) -> bool:
        """Copy the WAL beside writers; True if it should be restarted now."""
        options = self._options
        for _ in range(COPIES_MAX):
            self._note(copy(apsw.SQLITE_CHECKPOINT_PASSIVE))
            if self.wal_bytes - self._copied_bytes <= options.wal_bytes_left:
                self._copy_from_bytes = options.wal_bytes_checkpoint
                return True
            self._copy_from_bytes = options.wal_bytes_reset // 4
            if self.wal_bytes < options.wal_bytes_reset:
                return False
        return True

    def _note(self, done: tuple[int, int] | None) -> None:
        if done is not None:
            self.wal_bytes, self._copied_bytes = done


class WalPreallocation:
    """How far one process knows the file of the WAL to reach, and where the WAL ends in it.

    The writer calls it inside its transaction, so no process writes a frame meanwhile.
    """

    __slots__ = ("_end", "_path", "_size", "pages", "step_bytes")

    def __init__(self, path: str) -> None:
        self._path = f"{path}-wal"
        self._end = 0
        self._size = START_BYTES
        self.pages = 0
        """The pages in the WAL after the last commit."""
        self.step_bytes = 0
        """The bytes of a page and its frame."""

    def ensure(self) -> None:
        """Before a commit, make the file reach beyond the commit, as a rule."""
        end = HEADER_BYTES + self.pages * self.step_bytes if self.pages else 0
        grown = end - self._end
        if grown < 0:
            self._size = 0  # the WAL was started anew, and its file may have been cut
        self._end = end
        if end + LOW_BYTES > self._size and grown < LARGE_BYTES:
            self._extend()

    def _extend(self) -> None:
        try:
            file = os.open(self._path, os.O_WRONLY)
            try:
                size = os.fstat(file).st_size
                if self._end >= START_BYTES - LOW_BYTES and size < self._end + LOW_BYTES:
                    size += os.pwrite(file, _ZEROS, size)
            finally:
                os.close(file)
        except OSError:
            size = self._end + AHEAD_BYTES  # the disk may be full: the commit itself will tell
        self._size = max(size, START_BYTES)
