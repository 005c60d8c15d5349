"""Room: whether the disk of a store has enough of it, asked rarely.

A commit that finds the disk full half-way leaves its outcome in doubt. So a reserve is kept: while there
is less, commits are refused before they begin. Room inside the store's file, which what was deleted has
left there, counts too: else truncating a store that has filled its disk would be of no use. Room that
the file will take, once the write-ahead log is copied into it, counts as taken: else that copy would
take the reserve.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

from millstream.clock import Clock
from millstream.errors import DiskFull
from millstream.limits import Limits, MiB
from millstream.store.engine import Shortage

ASKED_S = 0.01
"""How long an answer holds while there is room: a fast disk takes less than the reserve meanwhile."""

ASKED_BYTES = MiB
"""Growth of the write-ahead log after which is asked again."""

SHARE = 16
"""The reserve is at most this part of a disk: a small one would take nothing otherwise."""


class FileSpace(NamedTuple):
    """Room that matters beside that of the disk."""

    inside_bytes: int
    """What the store's file can take without growing."""
    owed_bytes: int
    """By how much it grows when the write-ahead log is copied into it."""


def full(folder: str | os.PathLike[str], cause: str) -> DiskFull:
    """What callers are told when a write found a folder's disk full, before anything was stored."""
    folder = os.fspath(folder)
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError:
        free_bytes = 0
    return DiskFull(
        f"the disk of {folder} is full ({cause}): {free_bytes:,} bytes are free; nothing was stored, "
        "and reads go on. Make room on the disk: writing then works again without a restart",
        path=folder,
        free_bytes=free_bytes,
    )


class DiskSpace:
    """The free room of one folder; while it is short, each question is asked anew."""

    def __init__(
        self, folder: str, limits: Limits, clock: Clock, *, file: Callable[[], FileSpace]
    ) -> None:
        """`file` is asked only if the disk may be short."""
        self._folder = folder
        self._file = file
        self._reserve_bytes = limits.disk_free_bytes_min
        self._clock = clock
        self._due_bytes = 0
        self._due_s = 0.0

    def shortage(self, written_bytes: int) -> Shortage | None:
        """What is missing, given how much is in the write-ahead log; None if nothing is."""
        if written_bytes < self._due_bytes and self._clock.seconds() < self._due_s:
            return None
        found = self._ask(written_bytes) if self._reserve_bytes else None
        self._due_bytes = 0 if found else written_bytes + ASKED_BYTES
        self._due_s = self._clock.seconds() + ASKED_S
        return found

    def _ask(self, written_bytes: int) -> Shortage | None:
        try:
            disk = shutil.disk_usage(self._folder)
        except OSError:
            return None  # the commit itself will tell
        reserve_bytes = min(self._reserve_bytes, disk.total // SHARE)
        if disk.free >= reserve_bytes + written_bytes:
            return None  # also if the file grows by all of it
        file = self._file()
        free_bytes = disk.free - file.owed_bytes
        if free_bytes >= reserve_bytes:
            return None
        if free_bytes >= reserve_bytes // 2 and file.inside_bytes >= reserve_bytes:
            return None  # the file need not grow, and the write-ahead log has half of the reserve
        return Shortage(self._folder, disk.free, reserve_bytes, file.owed_bytes)
