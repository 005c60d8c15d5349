"""The connections of a SQLite file beside the writer: a pool of readers, and one for each background task.

The pool counts connections in use. A fork, and the closing of the file, wait until the count is 0. A
use that begins during a fork waits for the end of the fork. The engine opens the connections.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal

import apsw

from millstream.engine.sqlite.rows import SqliteReader
from millstream.errors import Closed, MillstreamError

READERS_KEPT = 8

READS_S_MAX = 10.0
"""How long closing waits for running reads: an interrupted read may never report its end."""


class ReaderPool:
    """Idle readers, and the number of connections in use."""

    def __init__(
        self,
        path: Path,
        *,
        make: Callable[[], SqliteReader],
        explain: Callable[[apsw.Error], MillstreamError],
    ) -> None:
        self.lock = threading.Lock()
        """The engine also holds the lock while it opens or drops its other connections."""
        self.is_closed = False
        self.explain = explain
        """Maps an error of SQLite to the error for callers."""
        self._path = path
        self._make = make
        self._readers: list[SqliteReader] = []
        self._in_use = 0
        self._suspended = False
        self._idle = threading.Condition(self.lock)

    def keep(self, reader: SqliteReader) -> None:
        """Add a reader for later reads."""
        self._readers.append(reader)

    def take(self) -> SqliteReader:
        """Return an idle or new reader. Raises `Closed`."""
        with self.lock:
            self._begin_use()
            if self._readers:
                return self._readers.pop()
        try:
            return self._make()
        except BaseException:
            self._end_use()
            raise

    def give(self, reader: SqliteReader) -> None:
        """Take a reader back."""
        with self.lock:
            self._in_use -= 1
            if len(self._readers) < READERS_KEPT:
                self._readers.append(reader)
            else:
                reader.connection.close()
            if self.is_closed or self._suspended:
                self._idle.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay forks and closing while the block runs."""
        with self.lock:
            self._begin_use()
        try:
            yield
        finally:
            self._end_use()

    def check_open(self) -> None:
        """Raise `Closed` if the pool was closed."""
        if self.is_closed:
            raise self._gone()

    def suspend(self, drop: Callable[[], None]) -> None:
        """Hold new uses back, wait for running uses, and drop all connections."""
        with self._idle:
            self._suspended = True
            self._idle.wait_for(lambda: not self._in_use, READS_S_MAX)
            drop()

    def resume(self, *, in_child: bool) -> None:
        """Allow new uses; a forked child gets a new lock."""
        if in_child:
            self.lock = threading.Lock()
            self._idle = threading.Condition(self.lock)
        with self._idle:
            self._suspended = False
            self._idle.notify_all()

    def close(self, drop: Callable[[], None]) -> None:
        """Refuse new uses, wait for running uses, and drop all connections, once."""
        with self._idle:
            if self.is_closed:
                return
            self.is_closed = True
            self._idle.wait_for(lambda: not self._in_use, READS_S_MAX)
            drop()

    def drain(self) -> list[SqliteReader]:
        """Remove and return the idle readers; called under the lock."""
        idle, self._readers = self._readers, []
        return idle

    def _begin_use(self) -> None:
        """Wait for a running fork, and delay the next fork; called under the lock."""
        while self._suspended:
            self._idle.wait()
        if self.is_closed:
            raise self._gone()
        self._in_use += 1

    def _gone(self) -> Closed:
        return Closed(f"{self._path} was closed", path=str(self._path))

    def _end_use(self) -> None:
        with self._idle:
            self._in_use -= 1
            self._idle.notify_all()


Task = Literal["checkpoint", "scrub", "compaction"]


class TaskConnections:
    """The connections of background tasks, one for each task, opened at its first use."""

    def __init__(self, pool: ReaderPool, connect: Callable[[], apsw.Connection]) -> None:
        self._pool = pool
        self._connect = connect
        self._connections: dict[Task, apsw.Connection] = {}

    @contextmanager
    def held(
        self, task: Task, prepare: Callable[[apsw.Connection], object] | None = None
    ) -> Iterator[apsw.Connection]:
        """Yield the connection of a task, prepared when new; forks and closing wait for the block's end."""
        with self._pool.held():
            with self._pool.lock:
                connection = self._connections.get(task)
                if connection is None:
                    connection = self._connections[task] = self._connect()
                    if prepare is not None:
                        prepare(connection)
            yield connection

    def drain(self) -> list[apsw.Connection]:
        """Remove and return all connections; called under the lock of the pool."""
        connections, self._connections = [*self._connections.values()], {}
        return connections


class PooledSnapshot:
    """An open snapshot: a reader of the pool, in a transaction."""

    __slots__ = ("_pool", "_reader")

    def __init__(self, pool: ReaderPool) -> None:
        self._pool = pool

    def __enter__(self) -> SqliteReader:
        reader = self._reader = self._pool.take()
        try:
            reader.begin()
        except BaseException as error:
            self._pool.give(reader)
            if isinstance(error, apsw.Error):
                raise self._pool.explain(error) from error
            raise
        return reader

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._reader.end()
        except apsw.Error as failed:
            raise self._pool.explain(failed) from failed
        finally:
            self._pool.give(self._reader)
        if isinstance(error, apsw.Error):
            raise self._pool.explain(error) from error
