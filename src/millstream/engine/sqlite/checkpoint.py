"""Checkpoints: when SQLite's write-ahead log is copied into the file, and started anew.

A log that is written from its start again is synced faster than one that grows. Where writers leave
little behind while it is copied, it is started anew each time. Where they are too fast for that, it
first grows to its most.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import apsw

from millstream.engine.sqlite.options import SqliteOptions

COPIES_MAX = 4
"""How often the log is copied beside running writers before they are kept out for the rest."""

Copy = Callable[[int], tuple[int, int] | None]
"""A checkpoint in one of SQLite's modes: bytes in the log, and bytes copied; None if it was busy."""


class Checkpoints:
    """How large the write-ahead log is, and how much of it has been copied."""

    def __init__(self, options: SqliteOptions) -> None:
        self._options = options
        self.wal_bytes = 0
        self._copied_bytes = 0
        self._noticed_bytes = 0
        self._copy_from_bytes = options.wal_bytes_checkpoint

    def is_due(self) -> bool:
        """Whether the log has grown enough to be copied."""
        return self.wal_bytes - self._copied_bytes >= self._copy_from_bytes

    def committed(self, wal_bytes: int) -> bool:
        """A commit of this process has left the log with so many bytes; True if a copy is due."""
        if wal_bytes < self.wal_bytes:
            self._copied_bytes = 0
        self.wal_bytes = wal_bytes
        return wal_bytes - self._copied_bytes >= self._copy_from_bytes

    def notice(self, file_bytes: int) -> None:
        """The file of the log has so many bytes: other processes may have left them, and be gone."""
        if file_bytes - self._noticed_bytes >= self._options.wal_bytes_checkpoint:
            self._noticed_bytes = file_bytes
            self.wal_bytes = max(file_bytes, self.wal_bytes)

    def run(self, copy: Copy, alone: AbstractContextManager[object]) -> None:
        """Copy the log beside writers; the rest, if it is little, while they are kept out."""
        if self._copy_beside(copy):
            with alone:
                self._note(copy(apsw.SQLITE_CHECKPOINT_RESTART))

    def _copy_beside(self, copy: Copy) -> bool:
        """Copy while writers go on; True if the log should be started anew now."""
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
