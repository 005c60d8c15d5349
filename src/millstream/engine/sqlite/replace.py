"""Replacement of a store's file that no process has open; the old file is kept under another name.

SQLite connections in write-ahead mode hold a shared lock of their file. An exclusive lock of the same
bytes shows that no connection is open, and keeps new ones out until the new file has the name. The lock
needs no sound file: the usual reason for a replacement is damage.

    step                                        after a kill before the next step
    1  a sound store is opened and closed,      the old store
       which folds its write-ahead log in
    2  the old file gets a second name          the old store, and its second name
    3  a remaining log gets a second name, and  the old damaged file without its log; both are whole
       loses its first name                     under their second names
    4  the new file replaces the old name       the new store
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from millstream.engine.disk import sync_folder
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.neighbour import is_open_here, own_descriptors
from millstream.engine.sqlite.unfinished_file import has_log
from millstream.errors import CannotOpen, MillstreamError

_LOCKED_START, _LOCKED_BYTES = 0x40000000, 512
"""The bytes of a file that SQLite's connections lock."""


def replace_file(
    partial: Path, place: Path, *, shown: Path, check: Callable[[], None] = lambda: None
) -> Path:
    """Replace a file by a partial file, and return the new name of the old file.

    The new file gets the owner and the permissions of the old one: root may restore the store of a service.
    `check` is called while no process can open the file, and may refuse by an error. Raises `CannotOpen`
    if a process has the file open, and changes nothing.
    """
    refuse_open(place, shown=shown)
    with suppress(MillstreamError):  # a damaged store keeps its log
        SqliteEngine(place, adopt=False).close()
    aside = _unused_name(place)
    with _alone(place, shown):
        check()
        _take_rights(partial, place)
        os.link(place, aside)
        if has_log(place):
            os.link(f"{place}-wal", f"{aside}-wal")
            sync_folder(place)
            os.unlink(f"{place}-wal")
        os.rename(partial, place)
        with suppress(FileNotFoundError):
            os.unlink(f"{place}-shm")
    return aside


def _take_rights(partial: Path, place: Path) -> None:
    """Give a file the permissions and, as far as this user may, the owner and group of another."""
    status = place.stat()
    with suppress(PermissionError):
        os.chown(partial, status.st_uid, status.st_gid)
    os.chmod(partial, stat.S_IMODE(status.st_mode))


def refuse_open(place: Path, *, shown: Path) -> None:
    """Raise `CannotOpen` if a process has a file open, also this one."""
    if is_open_here(place):
        raise _in_use(shown)
    with _alone(place, shown):
        pass


@contextmanager
def _alone(place: Path, shown: Path) -> Iterator[None]:
    """Keep every connection away from a file that none has open."""
    descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    own_descriptors.add(descriptor)
    try:
        if not _locked(descriptor):
            raise _in_use(shown)
        yield
    finally:
        own_descriptors.discard(descriptor)
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        if hasattr(fcntl, "F_OFD_SETLK"):
            lock = struct.pack(
                "hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _LOCKED_START, _LOCKED_BYTES, 0
            )
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
        else:
            fcntl.lockf(
                descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKED_BYTES, _LOCKED_START, os.SEEK_SET
            )
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _in_use(shown: Path) -> CannotOpen:
    return CannotOpen(
        f"{shown} is in use, and was left as it is: stop all programs that use it, or name another "
        "file",
        path=str(shown),
        again=True,
    )


def _unused_name(place: Path) -> Path:
    number = 1
    while (path := place.with_name(f"{place.name}.aside-{number}")).exists():
        number += 1
    return path
