"""Another SQLite library in this process that uses the store's file, such as Python's `sqlite3`.

SQLite locks files by POSIX record locks, and these belong to the process. Millstream uses the copy of
SQLite inside apsw, and `sqlite3` uses another copy. The two copies do not know of each other, so
POSIX locks fail between them:

    event                                        result without this module
    a copy closes its last connection            it removes the write-ahead log of the other copy
    a copy closes any connection                 the locks of the other copy are dropped
    both copies write, or one makes a checkpoint no lock stops them: the file is damaged

Linux has a second kind of lock, which belongs to an open file description. Such a lock conflicts with
POSIX locks of the same process, and only its own description drops it. So:

- While an engine has connections, a `FileGuard` holds SQLite's shared lock of the file by a lock of the
  second kind. No other library can take the exclusive lock that it needs to remove the log.
- Once another library opens the file, apsw's copy takes the locks of the log's index (`-shm`) as locks
  of the second kind. For this SQLite's `fcntl` becomes a Python function. It costs about 4 µs for each
  lock, or 20 µs for each transaction (measured 2026-11), so a process without a neighbour does
  not pay it.

A neighbour is noticed by the audit event of `sqlite3.connect`, and by open descriptors of the file when
a store is opened. Other systems than 64-bit Linux have neither: there a process must use one library.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import apsw

from millstream.engine import process_fork
from millstream.engine.sqlite.file import close_connection
from millstream.engine.sqlite.identity import Identity, identity
from millstream.errors import CannotOpen, Overloaded

IS_SUPPORTED = sys.platform == "linux" and struct.calcsize("P") == 8

_SHARED_START, _SHARED_BYTES = 0x40000002, 510
"""The bytes of a file that SQLite locks while a connection uses the file."""

_INDEX_START, _INDEX_END = 120, 129
"""The bytes of the log's index (`-shm`) that SQLite locks: writer, checkpoint, readers, and others."""

_START_AT, _PID_AT = 8, 24
"""Positions in C's `struct flock`: the first byte of the lock, and the process, 0 for our locks."""

_TO_OPEN_FILE = {5: 36, 6: 37, 7: 38}
"""`F_GETLK`, `F_SETLK`, `F_SETLKW` → the same for open file descriptions."""

_open_paths: Counter[str] = Counter()
"""Number of engines of this process that have a file open, by real path."""

own_descriptors: set[int] = set()
"""Descriptors of files that Millstream itself opens beside SQLite: they are no neighbour."""

_guards: dict[str, FileGuard] = {}
_lock = threading.Lock()
"""Held while a guard changes."""


def _renew_lock() -> None:
    """Replace the lock in a forked child: a thread of the parent may hold it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def is_open_here(path: Path) -> bool:
    """Return whether an engine of this process has a file open; no other code may close the file.

    Closing any descriptor of a file drops all POSIX locks of the process on the file.
    """
    return _open_paths[os.path.realpath(path)] > 0


class FileGuard:
    """SQLite's shared lock of a file, for all engines of this process that have the file open."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.descriptor = -1
        self._holders: set[int] = set()

    def hold(self, holder: object, busy: Callable[[int], bool]) -> None:
        """Take the lock for a holder, once; `busy` waits while another process closes the file."""
        with _lock:
            if not self._holders:
                self._take(busy)
            self._holders.add(id(holder))

    def connect(
        self, holder: object, connect: Callable[[], apsw.Connection], busy: Callable[[int], bool]
    ) -> apsw.Connection:
        """Open a connection, then take the lock: a new file's first connection needs it exclusively."""
        connection = connect()
        try:
            self.hold(holder, busy)
        except BaseException:
            close_connection(connection, checkpoint=False)
            raise
        return connection

    def close(
        self,
        holder: object,
        connections: list[apsw.Connection],
        *,
        checkpoint: bool,
        connect: Callable[[], apsw.Connection],
    ) -> None:
        """Close the connections of a holder, then the guard.

        With `checkpoint` the last connection of all processes copies the write-ahead log into the
        file and removes it. Beside another library it must not: the log is the other library's too.
        """
        is_alone = self._path not in _index_locks.paths
        if checkpoint and is_alone:
            self._unlock()
        for connection in connections:
            close_connection(connection, checkpoint=checkpoint and is_alone)
        self.release(holder)
        if checkpoint and not is_alone and not _is_open_elsewhere(self._path):
            close_connection(connect(), checkpoint=True)

    def release(self, holder: object) -> None:
        """Close the descriptor after the last connection; keep the lock beside another library."""
        with _lock:
            if id(holder) not in self._holders:
                return
            self._holders.remove(id(holder))
            if self._holders:
                return
            if self._path in _index_locks.paths and _is_open_elsewhere(self._path):
                # Closing our connections has dropped the locks of the other library.
                _set_lock(self.descriptor, fcntl.F_RDLCK)
            else:
                self._close()

    def _unlock(self) -> None:
        """Give the lock up before the last connection closes, which takes the exclusive lock."""
        with _lock:
            if len(self._holders) == 1:
                _set_lock(self.descriptor, fcntl.F_UNLCK)

    def _take(self, busy: Callable[[int], bool]) -> None:
        if self.descriptor >= 0 and _identity_of(self.descriptor) != identity(self._path):
            self._close()  # the file was replaced
        if self.descriptor < 0:
            self.descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        attempt = 0
        while not _set_lock(self.descriptor, fcntl.F_RDLCK):
            if not busy(attempt):
                raise Overloaded(f"{self._path} is locked by another process", path=self._path)
            attempt += 1

    def _close(self) -> None:
        os.close(self.descriptor)
        self.descriptor = -1


def guard_of(path: str) -> FileGuard:
    """Return the guard of a file, by its real path."""
    return _guards.setdefault(path, FileGuard(path))


def opened(path: str) -> None:
    """Note that an engine of this process has a file open."""
    _open_paths[path] += 1


def closed(path: str) -> None:
    """Note that an engine of this process has closed a file."""
    _open_paths[path] -= 1


def look_for_neighbour(path: str) -> None:
    """Share the locks of a file if another library has it open; before an engine's first connection."""
    if IS_SUPPORTED and not _open_paths[path]:
        _watch_connects()
        if "_sqlite3" in sys.modules and _is_open_elsewhere(path):
            _index_locks.share(path)


def has_neighbour(path: str) -> bool:
    """Return whether another library of this process has used a file while a store was open."""
    return path in _index_locks.paths


class _IndexLocks:
    """The locks of the indexes of write-ahead logs, as locks of open file descriptions."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        """The real paths of files with a neighbour."""
        self._indexes: set[Identity] = set()
        self._fcntl: Any = None
        self._callback: Any = None

    def share(self, path: str) -> None:
        """Take the locks of a file's index so that another library sees them.

        No connection of apsw to the file may be open: it would hold a lock of the old kind.
        """
        self.paths.add(path)
        if self._callback is not None:
            return
        self._fcntl = ctypes.PyDLL(None, use_errno=True).fcntl
        self._fcntl.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, use_errno=True
        )
        self._callback = prototype(self._lock)
        address = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        if not apsw.VFS("millstream-neighbour", base="unix").xSetSystemCall("fcntl", address):
            raise CannotOpen("this SQLite does not let Millstream share locks with another library")

    def _lock(self, descriptor: int, command: int, argument: int) -> int:
        """Stand in for `fcntl` inside SQLite; an exception must not look like success."""
        try:
            other = _TO_OPEN_FILE.get(command)
            if other is not None and self._is_index(descriptor, argument):
                ctypes.c_int.from_address(argument + _PID_AT).value = 0
                command = other
            result: int = self._fcntl(descriptor, command, argument)
        except BaseException:
            ctypes.set_errno(errno.EIO)
            return -1
        return result

    def _is_index(self, descriptor: int, argument: int) -> bool:
        """Return whether a lock is for the index of a file with a neighbour."""
        start = ctypes.c_longlong.from_address(argument + _START_AT).value
        if not _INDEX_START <= start < _INDEX_END:
            return False
        index = _identity_of(descriptor)
        if index in self._indexes:
            return True
        if any(identity(f"{path}-shm") == index for path in self.paths):
            self._indexes.add(index)
            return True
        return False


_index_locks = _IndexLocks()
_is_watching = False


def _watch_connects() -> None:
    """Notice each connection that `sqlite3` opens in this process; the hook cannot be removed."""
    global _is_watching
    if not _is_watching:
        _is_watching = True
        sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "sqlite3.connect":
        path = _path_of(arguments[0])
        if path is not None and _open_paths[path] and path not in _index_locks.paths:
            with process_fork.at_rest():
                _index_locks.share(path)


def _path_of(database: Any) -> str | None:
    """Return the real path of a database that `sqlite3` opens; None if it is no file."""
    try:
        name = os.fsdecode(database)
    except TypeError:
        return None  # sqlite3 reports the wrong type
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    return os.path.realpath(name) if name and name != ":memory:" else None


def _identity_of(descriptor: int) -> Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _is_open_elsewhere(path: str) -> bool:
    """Return whether this process has descriptors of a file that are not ours."""
    wanted = identity(path)
    ours = {guard_of(path).descriptor} | own_descriptors
    for name in os.listdir("/proc/self/fd") if IS_SUPPORTED and wanted else ():
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            if int(name) not in ours and _identity_of(int(name)) == wanted:
                return True
    return False


def _set_lock(descriptor: int, kind: int) -> bool:
    """Set or remove the shared lock; return False if another process holds the exclusive lock."""
    if not IS_SUPPORTED:
        return True
    lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, _SHARED_START, _SHARED_BYTES, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP):
            return True  # this file system has no such locks
        if error.errno == errno.EACCES:
            return False
        raise
    return True
