"""Room: whether the disk of a store has enough of it, asked rarely.

A commit that finds the disk full half-way leaves its outcome in doubt. So a reserve is kept: while there
is less, commits are refused before they begin.
"""

from __future__ import annotations

import os
import shutil

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

    def __init__(self, folder: str, limits: Limits, clock: Clock) -> None:
        self._folder = folder
        self._reserve_bytes = limits.disk_free_bytes_min
        self._clock = clock
        self._due_bytes = 0
        self._due_s = 0.0

    def shortage(self, written_bytes: int) -> Shortage | None:
        """What is missing, given how much is in the write-ahead log; None if nothing is."""
        if written_bytes < self._due_bytes and self._clock.seconds() < self._due_s:
            return None
        found = self._ask() if self._reserve_bytes else None
        self._due_bytes = 0 if found else written_bytes + ASKED_BYTES
        self._due_s = self._clock.seconds() + ASKED_S
        return found

    def _ask(self) -> Shortage | None:
        try:
            disk = shutil.disk_usage(self._folder)
        except OSError:
            return None  # the commit itself will tell
        reserve_bytes = min(self._reserve_bytes, disk.total // SHARE)
        if disk.free >= reserve_bytes:
            return None
        return Shortage(self._folder, disk.free, reserve_bytes)
