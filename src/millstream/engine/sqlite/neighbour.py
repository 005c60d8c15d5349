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
- apsw's copy takes the locks of the log's index (`-shm`) as locks of the second kind, by a replaced
  `fcntl` (`_share_index_locks`). This costs no measurable time.
- At its end an engine leaves the log in place if the file is still open elsewhere in the process.

Other systems than Linux on x86-64 have only a part of this: there a process must use one library.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import apsw

from millstream.engine.sqlite.file import close_connection
from millstream.engine.sqlite.identity import Identity, identity
from millstream.errors import Overloaded

IS_SUPPORTED = sys.platform == "linux" and struct.calcsize("P") == 8

_SHARED_START, _SHARED_BYTES = 0x40000002, 510
"""The bytes of a file that SQLite locks while a connection uses the file."""

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
        is_alone = "_sqlite3" not in sys.modules
        if checkpoint and is_alone:
            self._unlock()
        elif checkpoint and connections and len(self._holders) == 1:
            # The log may have lost its name, and then only our connections can still read it.
            with suppress(apsw.Error):
                connections[-1].wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
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
            if "_sqlite3" in sys.modules and _is_open_elsewhere(self._path):
                # Closing our connections has dropped the locks of the other library.
                _set_lock(self.descriptor, fcntl.F_RDLCK)
            else:
                self._close()

    def drop_left_lock(self) -> None:
        """Drop a lock that `release` has kept for another library, which has closed the file since."""
        with _lock:
            if self.descriptor >= 0 and not self._holders:
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


def has_neighbour(path: str) -> bool:
    """Return whether another library of this process has a file open that no engine has open."""
    return "_sqlite3" in sys.modules and not _open_paths[path] and _is_open_elsewhere(path)


def _share_index_locks() -> bool:
    """Let apsw's SQLite take the locks of every log's index as locks of open file descriptions.

    SQLite calls `fcntl` while it holds its own mutexes. A Python function in its place would wait for the
    interpreter's lock there, while another thread holds that lock and waits for the mutex. So the function
    is machine code: it changes the arguments of the calls in question, and jumps to `fcntl`.
    """
    code = _CODES.get(platform.machine())
    if not IS_SUPPORTED or code is None:
        return False
    address = ctypes.cast(ctypes.CDLL(None).fcntl, ctypes.c_void_p).value
    assert address is not None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return False  # a hardened system lets no program make code
    page.write(code + address.to_bytes(8, "little"))
    # The page outlives the interpreter: a store that is still open is closed after Python has cleared
    # this module.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(page))
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return bool(apsw.VFS("millstream-neighbour", base="unix").xSetSystemCall("fcntl", start))


_CODES = {
    "x86_64": bytes.fromhex(
        "8d46fb"  # lea eax, [rsi - 5]       the command, from F_GETLK on
        "83f802"  # cmp eax, 2
        "7718"  # ja end                   no command of POSIX locks
        "488b4208"  # mov rax, [rdx + 8]       the first byte of the lock
        "4883e878"  # sub rax, 120
        "4883f808"  # cmp rax, 8
        "770a"  # ja end                   no lock of an index
        "c7421800000000"  # mov dword [rdx + 24], 0  the process
        "83c61f"  # add esi, 31              the same for open file descriptions
        "488b0502000000"  # end: mov rax, [rip + 2]
        "ffe0"  # jmp rax
    )
}
has_shared_locks = _share_index_locks()
"""Whether another SQLite library in this process sees our locks, and we see its locks."""


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
