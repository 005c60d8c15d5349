"""Whether the files of a store are still those that were opened.

On POSIX a file that is removed, renamed or replaced stays open. SQLite goes on writing to it, and
what is written there is gone when the last process closes it, or lies under another name. A new
connection opens whatever has the name by then, and shares the index of the write-ahead log with
it. So writers, and readers as well, look every few milliseconds whether the names still lead to the
files that were opened.

Whether another file was copied over this one is looked at beside that (`sqlite_contents`).

While a file is open the number of its inode is not given to another one, so numbers are enough.
"""

from __future__ import annotations

import os

import apsw

from millstream.clock import Clock
from millstream.engine.sqlite.contents import Contents
from millstream.errors import StoreGone

ASKED_S = 0.01
"""How long an answer holds while all is well: to ask takes about as long as a tenth of a commit."""

Identity = tuple[int, int]
"""Device and inode."""


def identity(path: str) -> Identity | None:
    """Which file a name leads to; None if to none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def size_of(path: str | os.PathLike[str]) -> int:
    """The bytes of a file; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


class Home:
    """The names of a store's file and of its write-ahead log, and the files that were found there."""

    __slots__ = ("_clock", "_contents", "_due_s", "_file", "_log", "_path", "_shown")

    def __init__(self, path: str, clock: Clock, *, shown: str) -> None:
        """`path` has its links resolved; `shown` is what callers know it by."""
        self._path, self._clock, self._shown = path, clock, shown
        self.settle()

    def settle(self) -> None:
        """What is here now is what shall be here."""
        self._file = identity(self._path)
        self._contents = Contents()
        self.forget_log()

    def forget_log(self) -> None:
        """The connection to write is opened anew: it finds a log, or makes one."""
        self._log: Identity | None = None
        self._due_s = -1.0

    def check_connecting(self) -> None:
        """Raise `StoreGone` if a new connection would open another file, or none."""
        if self._contents.is_foreign or identity(self._path) != self._file:
            raise self._error(self._path)

    def check_read(self) -> None:
        """Raise `StoreGone` if another file has the name; what is only gone can be read."""
        if self._clock.seconds() < self._due_s:
            return
        if self._contents.is_foreign or identity(self._path) not in (self._file, None):
            raise self._error(self._path)

    def check_write(self, connection: apsw.Connection) -> None:
        """Raise `StoreGone` unless the file and its log are those that were opened.

        The connection is the caller's, and open: so no other process removes the log as the last one.
        """
        if self._clock.seconds() < self._due_s:
            return
        self.check_contents(connection)
        log = f"{self._path}-wal"
        if self._log is not None and identity(log) != self._log:
            raise self._error(log)
        if self._log is None:  # SQLite makes it with the first transaction
            self._log = identity(f"{self._path}-wal")
        self._due_s = self._clock.seconds() + ASKED_S

    def check_contents(self, connection: apsw.Connection) -> None:
        """Raise `StoreGone` unless the file is that which was opened, and has what SQLite wrote."""
        try:
            found = os.stat(self._path)
        except OSError:
            raise self._error(self._path) from None
        is_here = (found.st_dev, found.st_ino) == self._file
        if not (is_here and self._contents.check(found, connection)):
            raise self._error(self._path)

    def missing(self) -> str | None:
        """Which of the names does not lead to the file that was opened, as it was written."""
        if self._contents.is_foreign or identity(self._path) != self._file:
            return self._path
        log = f"{self._path}-wal"
        return log if self._log is not None and identity(log) != self._log else None

    @property
    def may_checkpoint(self) -> bool:
        """Whether the last connection to go may copy the log into the file, and remove its name.

        Not if another store has one of the names now: SQLite would remove that one's log.
        """
        if self._contents.is_foreign or identity(self._path) != self._file:
            return False
        return self._log is None or identity(f"{self._path}-wal") in (None, self._log)

    def _error(self, path: str) -> StoreGone:
        """What callers are told of a name that leads elsewhere."""
        if self._contents.is_foreign:
            return StoreGone(
                f"{path} was overwritten while the store was open, by another file or an older copy; "
                f"nothing was stored, since it would be lost; close the store everywhere, move "
                f"{path}-wal away, which belongs to what was there before, and copy the file again",
                path=self._shown,
            )
        found = "is another file now" if os.path.exists(path) else "is gone"
        return StoreGone(
            f"{path} {found}: it was removed, renamed or replaced while the store was open; nothing "
            "was stored, since it would be lost; put the file back, or close the store and open it "
            "again",
            path=self._shown,
        )
