"""Free space on the disk of a store, checked rarely, and the sync of a file's folder.

A commit that fills the disk half-way leaves its outcome in doubt. So a reserve is kept: with less free
space, commits are refused before they begin. Free pages inside the store's file count as free space:
otherwise truncating logs in a store that has filled its disk would not help. Space that the next
checkpoint will take counts as used: otherwise the checkpoint would take the reserve.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from millstream.clock import Clock
from millstream.engine.protocol import Shortage
from millstream.errors import CannotOpen, DiskFull
from millstream.limits import Limits, MiB

ASKED_S = 0.01
"""How long an answer is cached while space is free: a fast disk writes less than the reserve in it."""

ASKED_BYTES = MiB
"""Growth of the write-ahead log after which the disk is asked again at the latest."""

WRITTEN_TIMES = 2
"""How often a byte can take space: in the write-ahead log, and in the file."""

SHARE = 16
"""The reserve is at most a sixteenth of a disk: a small disk would take no write otherwise."""


class FileSpace(NamedTuple):
    """The free space inside a store's file, and its growth by the next checkpoint."""

    inside_bytes: int
    """Bytes of free pages, which the file can fill without growing."""
    owed_bytes: int
    """Bytes by which the next checkpoint makes the file grow."""


class LogSize(Protocol):
    """The size of a write-ahead log. Each commit reads the attribute, so reading must be cheap."""

    wal_bytes: int


class NoLog:
    """The size of a log that does not exist."""

    wal_bytes = 0


NO_LOG = NoLog()


def full(folder: str | os.PathLike[str], cause: str) -> DiskFull:
    """Return the error for a write that found the disk of a folder full and stored nothing."""
    folder = os.fspath(folder)
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError:
        free_bytes = 0
    return DiskFull(
        f"the disk of {folder} is full ({cause}): {free_bytes:,} bytes are free; nothing was stored, "
        "and reads go on. Free space on the disk: writing then works again without a restart",
        path=folder,
        free_bytes=free_bytes,
    )


class DiskSpace:
    """The free space on the disk of a folder; cached, except during a shortage."""

    def __init__(
        self,
        folder: str,
        limits: Limits,
        clock: Clock,
        *,
        file: Callable[[], FileSpace],
        log: LogSize = NO_LOG,
    ) -> None:
        """`file` returns the space in the store's file; it is called only in a possible shortage."""
        self._folder = folder
        self._log = log
        self._file = file
        self._reserve_bytes = limits.disk_free_bytes_min
        self._clock = clock
        self._asked_bytes = 0
        self._due_bytes = 0
        self._due_s = 0.0

    def shortage(self) -> Shortage | None:
        """Return the shortage of free space on the disk; None with enough space."""
        written_bytes = self._log.wal_bytes
        grown = self._asked_bytes <= written_bytes < self._due_bytes  # the log also shrinks
        if grown and self._clock.seconds() < self._due_s:
            return None
        return self._ask(written_bytes) if self._reserve_bytes else None

    def _ask(self, written_bytes: int) -> Shortage | None:
        self._due_bytes = 0
        try:
            disk = shutil.disk_usage(self._folder)
        except OSError:
            return None  # the commit itself will fail
        reserve_bytes = min(self._reserve_bytes, disk.total // SHARE)
        spare_bytes = (
            disk.free - written_bytes - reserve_bytes
        )  # the file may grow by the whole log
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
    engine checks the space before a commit, and refuses the commit before any byte is written. The
    handle stays usable.
    """

    def __init__(self, folder: Path, limits: Limits, clock: Clock) -> None:
        self._folder, self._reserve_bytes = folder, limits.disk_free_bytes_min
        self.shortage = DiskSpace(str(folder), limits, clock, file=lambda: FileSpace(0, 0)).shortage

    def check(self, size_bytes: int) -> None:
        """Raise `DiskFull` for a write that would leave less than a quarter of the reserve."""
        try:
            disk = shutil.disk_usage(self._folder)
        except OSError:
            return  # the commit itself will fail
        reserve_bytes = min(self._reserve_bytes, disk.total // SHARE) // 4
        if disk.free - size_bytes < reserve_bytes:
            raise DiskFull(
                f"the disk of {self._folder} is full: {size_bytes:,} bytes were to be written, "
                f"{disk.free:,} are free, and {reserve_bytes:,} of them are kept in reserve; nothing "
                "was stored, and reads go on. Free space on the disk: writing then works again "
                "without a restart",
                path=str(self._folder),
                free_bytes=disk.free,
                reserve_bytes=reserve_bytes,
            )


def sync_folder(path: Path) -> None:
    """Sync the folder of a file, so that the names of the file and its write-ahead log are durable.

    SQLite does the same when it first syncs a new log, but ignores a failure.
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
