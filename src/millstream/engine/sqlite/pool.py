"""The readers of one SQLite file, kept for the next read.

Whatever is in use is counted: a fork and the closing of the file wait until nothing is, and a use
that begins during a fork waits for its end. What the connections are is left to the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import apsw

from millstream.engine.sqlite.rows import SqliteReader
from millstream.errors import Closed, MillstreamError

READERS_KEPT = 8

READS_S_MAX = 10.0
"""How long closing waits for running reads: an interrupted one may never report that it ended."""


class ReaderPool:
    """Readers that nobody uses, and how many uses there are."""

    def __init__(
        self,
        path: Path,
        *,
        make: Callable[[], SqliteReader],
        explain: Callable[[apsw.Error], MillstreamError],
    ) -> None:
        self.lock = threading.Lock()
        """Also held by the engine while it opens or drops connections of other kinds."""
        self.is_closed = False
        self.explain = explain
        """From an error of SQLite to what callers get."""
        self._path = path
        self._make = make
        self._readers: list[SqliteReader] = []
        self._in_use = 0
        self._suspended = False
        self._idle = threading.Condition(self.lock)

    def keep(self, reader: SqliteReader) -> None:
        """Have one more, for the next read."""
        self._readers.append(reader)

    def take(self) -> SqliteReader:
        """A reader, made if all are in use. Raises `Closed`."""
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
        """Have a reader back."""
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
        """Keep forks and closing from going on meanwhile."""
        with self.lock:
            self._begin_use()
        try:
            yield
        finally:
            self._end_use()

    def check_open(self) -> None:
        """Raise `Closed` if it was closed."""
        if self.is_closed:
            raise self._gone()

    def suspend(self, drop: Callable[[], None]) -> None:
        """Hold new uses back, wait for the others, and drop all connections."""
        with self._idle:
            self._suspended = True
            self._idle.wait_for(lambda: not self._in_use, READS_S_MAX)
            drop()

    def resume(self, *, in_child: bool) -> None:
        """Let uses begin again; a forked child has a lock of its own from then on."""
        if in_child:
            self.lock = threading.Lock()
            self._idle = threading.Condition(self.lock)
        with self._idle:
            self._suspended = False
            self._idle.notify_all()

    def close(self, drop: Callable[[], None]) -> None:
        """Refuse new uses, wait for the others, and drop all connections; once."""
        with self._idle:
            if self.is_closed:
                return
            self.is_closed = True
            self._idle.wait_for(lambda: not self._in_use, READS_S_MAX)
            drop()

    def drain(self) -> list[SqliteReader]:
        """Let go of the readers that are not in use; called under the lock."""
        found, self._readers = self._readers, []
        return found

    def _begin_use(self) -> None:
        """Wait for a running fork, and keep the next one back; called under the lock."""
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


class PooledSnapshot:
    """A snapshot while it is open: a reader of the pool, in a transaction."""

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
