"""Room: whether the disk of a store has enough of it, asked rarely.

A commit that finds the disk full half-way leaves its outcome in doubt. So a reserve is kept: while there
is less, commits are refused before they begin. Room inside the store's file, which what was deleted has
left there, counts too: else truncating a store that has filled its disk would be of no use. Room that
the file will take, once the write-ahead log is copied into it, counts as taken: else that copy would
take the reserve.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from millstream.clock import Clock
from millstream.engine.protocol import Shortage
from millstream.errors import CannotOpen, DiskFull
from millstream.limits import Limits, MiB

ASKED_S = 0.01
"""How long an answer holds while there is room: a fast disk takes less than the reserve meanwhile."""

ASKED_BYTES = MiB
"""Growth of the write-ahead log after which is asked again at the latest."""

WRITTEN_TIMES = 2
"""How often a byte can take its room: in the write-ahead log, and in the file."""

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
        self._asked_bytes = 0
        self._due_bytes = 0
        self._due_s = 0.0

    def shortage(self, written_bytes: int) -> Shortage | None:
        """What is missing, given how much is in the write-ahead log; None if nothing is."""
        grown = self._asked_bytes <= written_bytes < self._due_bytes  # it shrinks as well
        if grown and self._clock.seconds() < self._due_s:
            return None
        return self._ask(written_bytes) if self._reserve_bytes else None

    def _ask(self, written_bytes: int) -> Shortage | None:
        self._due_bytes = 0
        try:
            disk = shutil.disk_usage(self._folder)
        except OSError:
            return None  # the commit itself will tell
        reserve_bytes = min(self._reserve_bytes, disk.total // SHARE)
        spare_bytes = disk.free - written_bytes - reserve_bytes  # if the file grows by all of it
        if spare_bytes < 0:
            file = self._file()
            spare_bytes = disk.free - file.owed_bytes - reserve_bytes
            if spare_bytes < 0 and file.inside_bytes >= reserve_bytes:
                spare_bytes += reserve_bytes // 2  # the file need not grow, only the log
            if spare_bytes < 0:
                return Shortage(self._folder, disk.free, reserve_bytes, file.owed_bytes)
        self._asked_bytes = written_bytes
        self._due_bytes = written_bytes + min(ASKED_BYTES, spare_bytes // WRITTEN_TIMES)
        self._due_s = self._clock.seconds() + ASKED_S
        return None


class FolderSpace:
    """The free space on the disk of a store in a folder (`file:///`).

    SlateDB repeats requests that find the disk full, without end and without an error. So the
    engine asks the disk before a commit: one without space is refused before it is written, and the
    handle stays usable.
    """

    def __init__(self, folder: Path, limits: Limits, clock: Clock) -> None:
        self._folder, self._reserve_bytes = folder, limits.disk_free_bytes_min
        self._space = DiskSpace(str(folder), limits, clock, file=lambda: FileSpace(0, 0))

    def shortage(self) -> Shortage | None:
        """What is missing of the reserve; None if nothing is."""
        return self._space.shortage(0)

    def check(self, size_bytes: int) -> None:
        """Refuse with `DiskFull` what would take the part of the reserve that nothing may take."""
        try:
            disk = shutil.disk_usage(self._folder)
        except OSError:
            return  # the commit itself will tell
        kept_bytes = min(self._reserve_bytes, disk.total // SHARE) // 4
        if disk.free - size_bytes < kept_bytes:
            raise DiskFull(
                f"the disk of {self._folder} is full: {size_bytes:,} bytes were to be written, "
                f"{disk.free:,} are free, and {kept_bytes:,} of them are kept in reserve; nothing "
                "was stored, and reads go on. Make room on the disk: writing then works again "
                "without a restart",
                path=str(self._folder),
                free_bytes=disk.free,
                reserve_bytes=kept_bytes,
            )


def sync_folder(path: Path) -> None:
    """Make the names of a file and of its write-ahead log durable, where folders can be synced.

    SQLite does so when it first syncs a new log, and says nothing if that fails.
    """
    if os.name != "posix":
        return
    folder = os.path.dirname(os.path.realpath(path))
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTSUP):
            return  # this file system cannot sync folders
        raise CannotOpen(
            f"{path}: its folder {folder} could not be synced ({error.strerror or error}), so a "
            "power cut could make the file vanish; nothing was written. Look after the disk, and "
            "open the store again: the sync is then repeated",
            path=str(path),
        ) from error
