"""The identity of a store's files: checks that the names still lead to the files that were opened.

On POSIX a file that is removed, renamed or replaced stays open. SQLite continues to write to it, and
these writes are lost when the last process closes the file, or lie under another name. A new
connection opens the new file of that name, and shares the index of the write-ahead log with the old
one. So writers and readers check every few milliseconds whether the names still lead to the opened
files.

While a file is open, the operating system gives its inode number to no other file. So the number
is enough to recognise the file.

A copy into the same file (`cp other.db store.db`) keeps the name and the inode. SQLite does not
notice the copy: it goes on with the index of its write-ahead log, and mixes the pages of two files.
In write-ahead mode only checkpoints change the file. So its header is read only when the time stamp
has changed (`Contents`):

    observation                                    why SQLite never causes it
    the header is not that of an SQLite file       SQLite writes the same marks each time
    the change counter is lower than before        SQLite only counts up
    the file is larger than before and than the    a checkpoint writes only pages of the database
    database
    the file is smaller than before and than the   the database does not shrink
    database

The database does shrink by four causes, and the size is not compared then. `VACUUM` counts the version
of the schema up. A compaction of ours counts `shrunk` up in the row of the file. A database with
`auto_vacuum = FULL`, which another tool has set, shrinks with any commit. `PRAGMA incremental_vacuum`
of another tool leaves no mark, but SQLite then reports fewer pages than before. After a copy into the
file SQLite goes on with its own number of pages.

Such a database may have grown past its former size again before the next check. Then its first page is
in the write-ahead log, because this page holds the size. Each commit that writes the first page adds 1
to the change counter. So the file is ours if its counter is that of a first page in the log, or comes
right before that of the earliest. A file of exactly the expected size with a higher counter passes.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw
from msgspec import Struct

from millstream.clock import Clock
from millstream.engine.sqlite.header import FULL, HEADER_BYTES, INCREMENTAL, MAGIC
from millstream.engine.sqlite.schema import shrunk_of
from millstream.engine.sqlite.wal import change_counters
from millstream.errors import StoreGone

Identity = tuple[int, int]
"""Device and inode number of a file."""

TRIES = 3
"""How often the file is read before it counts as foreign: SQLite may be writing it now."""


class Observation(Struct, frozen=True, gc=False):
    """The file and its database at one moment, while no checkpoint wrote the file."""

    stamp: tuple[int, int]
    """The time stamp of the file, and its bytes."""
    is_sqlite: bool
    counter: int
    """The change counter in the header of the file."""
    database_bytes: int
    schema: int
    shrinks: int
    """The mode of `auto_vacuum`."""
    shrunk: int | None

    @property
    def file_bytes(self) -> int:
        """The bytes of the file: those of the database once a checkpoint has copied all of it."""
        return self.stamp[1]


class Contents:
    """The file as of the last check.

    Several threads check at the same time: writers, checkpoints, compaction. So an observation never
    changes, and each check compares with the observation that it found before it read the file. A
    check that ends late may put an older observation back, which is as true.
    """

    __slots__ = ("_file", "_latest", "_path", "is_foreign")

    def __init__(self, path: str, file: Identity | None) -> None:
        """`file` is the identity of the opened file."""
        self._path, self._file = path, file
        self._latest: Observation | None = None
        self.is_foreign = False
        """True once a foreign file was copied over the store's file; stays True."""

    def check(self, connection: apsw.Connection) -> bool:
        """True if the path leads to the opened file, and only SQLite has written it."""
        earlier = self._latest
        for _ in range(TRIES):
            status = os.stat(self._path)
            if self.is_foreign or (status.st_dev, status.st_ino) != self._file:
                return False
            stamp = _stamp(status)
            if earlier is not None and stamp == earlier.stamp:
                return True
            try:
                observation = _observe(stamp, connection)
            except apsw.Error:
                return True  # the transaction itself will fail
            is_steady = _stamp(os.stat(self._path)) == stamp
            if is_steady and (
                _may_follow(observation, earlier) or self._has_grown_again(observation, earlier)
            ):
                self._latest = observation
                return True
        self.is_foreign = is_steady  # while a checkpoint writes, the next check decides
        return not self.is_foreign

    def _has_grown_again(self, observation: Observation, earlier: Observation | None) -> bool:
        """True if the write-ahead log continues a file that another tool has shrunk."""
        if earlier is None or observation.shrinks != INCREMENTAL or not observation.is_sqlite:
            return False
        if observation.counter <= earlier.counter:
            return False
        counters = change_counters(Path(f"{self._path}-wal"))
        return bool(counters) and (
            observation.counter in counters or observation.counter + 1 == counters[0]
        )


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _observe(stamp: tuple[int, int], connection: apsw.Connection) -> Observation:
    """Read the header of the file, and the database as of one snapshot."""
    _, header = connection.read("main", 0, 0, HEADER_BYTES)
    with connection:  # a savepoint: the statements read one snapshot
        pages, page_bytes, schema, shrinks = (
            connection.pragma(name)
            for name in ("page_count", "page_size", "schema_version", "auto_vacuum")
        )
        shrunk = shrunk_of(connection)
    return Observation(
        stamp=stamp,
        is_sqlite=header[:16] == MAGIC,
        counter=int.from_bytes(header[24:28], "big"),
        database_bytes=pages * page_bytes,
        schema=schema,
        shrinks=shrinks,
        shrunk=shrunk,
    )


def _may_follow(observation: Observation, earlier: Observation | None) -> bool:
    """True if SQLite alone can have changed the file since the earlier observation."""
    if earlier is None or not observation.is_sqlite:
        return observation.is_sqlite
    if observation.counter < earlier.counter:
        return False
    if observation.shrinks == FULL or observation.schema > earlier.schema:
        return True
    if observation.shrinks == INCREMENTAL and (
        observation.database_bytes < earlier.database_bytes or observation.shrunk != earlier.shrunk
    ):
        return True
    # The earlier check may have seen the database smaller than the file, because the checkpoint
    # that cuts the file comes later.
    smallest = min(earlier.file_bytes, earlier.database_bytes)
    return smallest <= observation.file_bytes <= max(earlier.file_bytes, observation.database_bytes)


ASKED_S = 0.01
"""How long a good answer is cached: a check takes about a tenth of the time of a commit."""


def identity(path: str) -> Identity | None:
    """Return the identity of the file at a path; None without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def size_of(path: str | os.PathLike[str]) -> int:
    """Return the bytes of a file; 0 without a file."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


class Home:
    """The names of a store's file and its write-ahead log, and the identities of both files."""

    __slots__ = ("_clock", "_contents", "_file", "_log", "_path", "_shown", "due_s")

    def __init__(self, path: str, clock: Clock, *, shown: str) -> None:
        """`path` has its links resolved; `shown` is the path in messages."""
        self._path, self._clock, self._shown = path, clock, shown
        self.settle()

    def settle(self) -> None:
        """Take the present file as the right one."""
        self._file = identity(self._path)
        self._contents = Contents(self._path, self._file)
        self.forget_log()

    def forget_log(self) -> None:
        """Forget the identity of the log, because a new writer finds or creates a log."""
        self._log: Identity | None = None
        self.due_s = -1.0
        """The time of the next check; a good answer counts until then."""

    def check_connecting(self) -> None:
        """Raise `StoreGone` if a new connection would open a different file or none."""
        if self._contents.is_foreign or identity(self._path) != self._file:
            raise self._error(self._path)

    def check_read(self) -> None:
        """Raise `StoreGone` if another file has the name; a removed file can still be read."""
        if self._clock.seconds() < self.due_s:
            return
        if self._contents.is_foreign or identity(self._path) not in (self._file, None):
            raise self._error(self._path)

    def check_write(self, connection: apsw.Connection) -> None:
        """Raise `StoreGone` unless the file and its log are the opened ones; called from `due_s` on.

        The connection of the caller is open, so no other process closes last and removes the log.
        """
        self.check_contents(connection)
        log = f"{self._path}-wal"
        if self._log is not None and identity(log) != self._log:
            raise self._error(log)
        if self._log is None:  # SQLite creates the log with the first transaction
            self._log = identity(f"{self._path}-wal")
        self.due_s = self._clock.seconds() + ASKED_S

    def check_contents(self, connection: apsw.Connection) -> None:
        """Raise `StoreGone` unless the file is the opened one, and only SQLite has written it."""
        try:
            is_ours = self._contents.check(connection)
        except OSError:
            raise self._error(self._path) from None
        if not is_ours:
            raise self._error(self._path)

    def missing(self) -> str | None:
        """Return the name that does not lead to the opened file, or None."""
        if self._contents.is_foreign or identity(self._path) != self._file:
            return self._path
        log = f"{self._path}-wal"
        return log if self._log is not None and identity(log) != self._log else None

    @property
    def may_checkpoint(self) -> bool:
        """True if the last connection may checkpoint and remove the log.

        False if another store has one of the names now: SQLite would remove the log of that store.
        """
        if self._contents.is_foreign or identity(self._path) != self._file:
            return False
        return self._log is None or identity(f"{self._path}-wal") in (None, self._log)

    def _error(self, path: str) -> StoreGone:
        """Return the error for a name that leads to another file."""
        if self._contents.is_foreign:
            return StoreGone(
                f"{path} was overwritten while the store was open, by another file or an older copy; "
                f"nothing was stored, since it would be lost; close the store everywhere, move "
                f"{path}-wal away, which belongs to what was there before, and copy the file again",
                path=self._shown,
            )
        state = "is another file now" if os.path.exists(path) else "is gone"
        return StoreGone(
            f"{path} {state}: it was removed, renamed or replaced while the store was open; nothing "
            "was stored, since it would be lost; put the file back, or close the store and open it "
            "again",
            path=self._shown,
        )
