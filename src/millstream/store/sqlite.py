"""The SQLite engine: one file, many threads, many processes.

Records lie in a table without rowids, sorted by their key; what is keyed by one number (payloads,
payload blocks, deltas) in rowid tables, which take large values faster. Beside each row stands
the CRC32C of its key and value, checked whenever the row is read.

Writers take turns by `BEGIN IMMEDIATE`; readers never wait. Checkpoints run on a connection of
their own. "Database is locked" is waited for, and becomes `Overloaded` in the end.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

import apsw
import google_crc32c

from millstream.clock import Clock, SystemClock
from millstream.errors import (
    CannotOpen,
    Closed,
    CorruptionError,
    InvalidInput,
    MillstreamError,
    OutcomeUnknown,
    Overloaded,
    WriteFailed,
)
from millstream.format import keys
from millstream.limits import Limits
from millstream.store.engine import Durability, Row
from millstream.store.sqlite_file import PREFIX, connect, create, inspect

T = TypeVar("T")

_NUMBERED = {
    keys.PAYLOAD: f"{PREFIX}payload",
    keys.PAYLOAD_BLOCK: f"{PREFIX}block",
    keys.DELTA: f"{PREFIX}delta",
}
_RECORD = f"{PREFIX}record"
_DELTA = _NUMBERED[keys.DELTA]
_TABLES = (_RECORD, *_NUMBERED.values())

READERS_KEPT = 8


def row_checksum(key: bytes, value: bytes) -> int:
    """The CRC32C that stands beside a row."""
    return int(google_crc32c.extend(google_crc32c.value(key), value))


class SqliteSnapshot:
    """Reads on one connection, inside whatever transaction it has."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._execute = connection.execute

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        table = _NUMBERED.get(key[1])
        found: tuple[bytes, int] | None
        if table is None:
            query = f"SELECT value, crc FROM {_RECORD} WHERE key = ?"
            found = self._execute(query, (key,)).fetchone()
        else:
            query = f"SELECT value, crc FROM {table} WHERE id = ?"
            found = self._execute(query, (keys.number(key),)).fetchone()
        if found is None:
            return None
        return _checked(key, found[0], found[1])

    def scan(self, start: bytes, stop: bytes, *, limit: int, reverse: bool = False) -> list[Row]:
        """Up to `limit` rows with start <= key < stop."""
        order = "DESC" if reverse else "ASC"
        table = _NUMBERED.get(start[1])
        if table is None:
            rows = self._execute(
                f"SELECT key, value, crc FROM {_RECORD} WHERE key >= ? AND key < ? "
                f"ORDER BY key {order} LIMIT ?",
                (start, stop, limit),
            )
            return [(key, _checked(key, value, crc)) for key, value, crc in rows]
        first = keys.number(start.ljust(10, b"\x00"))
        condition, bound = ("", ()) if stop[1] != start[1] else ("AND id < ?", (keys.number(stop),))
        rows = self._execute(
            f"SELECT id, value, crc FROM {table} WHERE id >= ? {condition} "
            f"ORDER BY id {order} LIMIT ?",
            (first, *bound, limit),
        )
        prefix = start[:2]
        return [
            (key, _checked(key, value, crc))
            for number, value, crc in rows
            for key in (prefix + number.to_bytes(8, "big"),)
        ]

    def last_seq(self) -> int:
        """The sequence of the newest delta."""
        return int(self._execute(f"SELECT max(id) FROM {_DELTA}").fetchone()[0] or 0)

    def first_seq(self) -> int:
        """The sequence of the oldest delta."""
        return int(self._execute(f"SELECT min(id) FROM {_DELTA}").fetchone()[0] or 0)


class SqliteWriter(SqliteSnapshot):
    """The open write transaction."""

    def __init__(self, connection: apsw.Connection, after_commit: Callable[[], None]) -> None:
        super().__init__(connection)
        self._connection = connection
        self._after_commit = after_commit
        self.committed = False

    def put(self, rows: Iterable[Row]) -> None:
        """Write rows; a key that exists is overwritten."""
        with _writing():
            for key, value in rows:
                crc = row_checksum(key, value)
                table = _NUMBERED.get(key[1])
                if table is None:
                    self._execute(
                        f"INSERT OR REPLACE INTO {_RECORD} (key, value, crc) VALUES (?, ?, ?)",
                        (key, value, crc),
                    )
                else:
                    self._execute(
                        f"INSERT OR REPLACE INTO {table} (id, value, crc) VALUES (?, ?, ?)",
                        (keys.number(key), value, crc),
                    )

    def delete(self, found: Iterable[bytes]) -> None:
        """Delete rows."""
        with _writing():
            for key in found:
                table = _NUMBERED.get(key[1])
                if table is None:
                    self._execute(f"DELETE FROM {_RECORD} WHERE key = ?", (key,))
                else:
                    self._execute(f"DELETE FROM {table} WHERE id = ?", (keys.number(key),))

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete every row with start <= key < stop."""
        table = _NUMBERED.get(start[1])
        with _writing():
            if table is None:
                self._execute(
                    f"DELETE FROM {_RECORD} WHERE key >= ? AND key < ?", (start, stop)
                )
            else:
                self._execute(
                    f"DELETE FROM {table} WHERE id >= ? AND id < ?",
                    (keys.number(start), keys.number(stop)),
                )

    def sql(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run a statement on the application's own tables; ours are out of its reach."""
        self._connection.authorizer = _authorize
        try:
            self._execute(statement, tuple(parameters)).fetchall()
        except apsw.AuthError as error:
            raise InvalidInput(
                f"tx.sql may read and write the application's own tables only: {statement!r}",
                statement=statement,
            ) from error
        except (apsw.FullError, apsw.IOError) as error:
            raise WriteFailed(f"the statement could not be written: {error}") from error
        except apsw.Error as error:
            raise InvalidInput(f"tx.sql: {error}", statement=statement) from error
        finally:
            self._connection.authorizer = None

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Writes inside it are undone if it is left by an exception."""
        self._execute("SAVEPOINT operation")
        try:
            yield
        except BaseException:
            self._execute("ROLLBACK TO operation")
            self._execute("RELEASE operation")
            raise
        self._execute("RELEASE operation")

    def commit(self) -> None:
        """Make it durable."""
        try:
            self._execute("COMMIT")
        except apsw.Error as error:
            raise OutcomeUnknown(
                f"the commit failed and may or may not be durable: {error}; "
                "close the store and open it again to see",
                cause=str(error),
            ) from error
        self.committed = True
        self._after_commit()


class SqliteEngine:
    """Rows in one SQLite file."""

    shared = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        limits: Limits | None = None,
        clock: Clock | None = None,
        vfs: str | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self.durability: Durability = durability
        self.commits = 0
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._vfs = vfs
        self._lock = threading.Lock()
        self._writer: apsw.Connection | None = None
        self._tender: apsw.Connection | None = None
        self._readers: list[apsw.Connection] = []
        self._in_use = 0
        self._idle = threading.Condition(self._lock)
        self._wal_bytes = 0
        self._page_bytes = 0
        self._closed = False
        self._suspended = False
        inspect(self.path)
        create(self.path, busy=self._busy_handler(), vfs=vfs)
        self._writer = self._connect(writer=True)

    @contextmanager
    def write(self) -> Iterator[SqliteWriter]:
        """Wait for the turn to write; leaving without a commit undoes it all."""
        connection = self._writer or self._reopen_writer()
        self._begin(connection)
        writer = SqliteWriter(connection, self._committed)
        try:
            yield writer
        finally:
            if not writer.committed and connection.in_transaction:
                connection.execute("ROLLBACK")

    @contextmanager
    def read(self) -> Iterator[SqliteSnapshot]:
        """A snapshot on a connection from the pool."""
        connection = self._take_reader()
        try:
            connection.execute("BEGIN")
            try:
                yield SqliteSnapshot(connection)
            finally:
                connection.execute("COMMIT")
        except apsw.Error as error:
            raise self._damaged(error) from error
        finally:
            self._give_reader(connection)

    def last_seq(self) -> int:
        """The sequence of the newest delta."""
        connection = self._take_reader()
        try:
            return SqliteSnapshot(connection).last_seq()
        except apsw.Error as error:
            raise self._damaged(error) from error
        finally:
            self._give_reader(connection)

    def wants_tending(self) -> bool:
        """Whether the write-ahead log should be copied into the file."""
        return self._wal_bytes >= self._limits.wal_bytes_checkpoint

    def tend(self) -> bool:
        """Copy it while writers go on; True if it has grown so large that it should start anew."""
        self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        return self._wal_bytes >= self._limits.wal_bytes_reset

    def tend_exclusively(self) -> None:
        """Copy what little is left and start the write-ahead log anew."""
        self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)

    def suspend(self) -> None:
        """Before a fork: close every connection, without a checkpoint, and hold back new ones."""
        with self._idle:
            self._suspended = True
            while self._in_use:
                self._idle.wait()
            self._drop_connections(checkpoint=False)

    def resume(self, *, in_child: bool) -> None:
        """After the fork: connections are opened again when they are needed."""
        if in_child:
            self._lock = threading.Lock()
            self._idle = threading.Condition(self._lock)
        with self._idle:
            self._suspended = False
            self._idle.notify_all()

    def close(self) -> None:
        """Close every connection; the last one to go checkpoints and removes the log."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            while self._in_use:
                self._idle.wait()
            self._drop_connections(checkpoint=True)

    def describe(self) -> dict[str, Any]:
        """Facts for `stats`."""
        wal = Path(f"{self.path}-wal")
        return {
            "engine": "sqlite",
            "path": str(self.path),
            "durability": self.durability,
            "file_bytes": self.path.stat().st_size,
            "wal_bytes": wal.stat().st_size if wal.exists() else 0,
            "sqlite_version": apsw.sqlite_lib_version(),
        }

    def integrity(self) -> list[str]:
        """What SQLite's own integrity check finds wrong; empty if nothing."""
        connection = self._take_reader()
        try:
            found = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        except apsw.Error as error:
            found = [str(error)]
        finally:
            self._give_reader(connection)
        return [] if found == ["ok"] else found

    def _begin(self, connection: apsw.Connection) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError as error:
            raise Overloaded(
                f"{self.path}: other processes kept the write lock for "
                f"{self._limits.busy_timeout_ms / 1000:g} s",
                path=str(self.path),
            ) from error
        except (apsw.FullError, apsw.IOError, apsw.ReadOnlyError) as error:
            raise WriteFailed(f"{self.path}: {error}", path=str(self.path)) from error
        except apsw.Error as error:
            raise self._damaged(error) from error

    def _committed(self) -> None:
        self.commits += 1

    def _connect(self, *, writer: bool = False) -> apsw.Connection:
        connection = connect(self.path, busy=self._busy_handler(), vfs=self._vfs)
        level = "FULL" if self.durability == "full" else "NORMAL"
        connection.execute(f"PRAGMA synchronous = {level}")
        if writer:
            self._page_bytes = int(connection.execute("PRAGMA page_size").fetchone()[0])
            connection.set_wal_hook(self._on_wal)
        return connection

    def _on_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_bytes = pages * self._page_bytes
        return apsw.SQLITE_OK

    def _reopen_writer(self) -> apsw.Connection:
        with self._lock:
            if self._closed:
                raise Closed(f"{self.path} was closed", path=str(self.path))
            if self._writer is None:
                self._writer = self._connect(writer=True)
            return self._writer

    def _take_reader(self) -> apsw.Connection:
        with self._idle:
            while self._suspended:
                self._idle.wait()
            if self._closed:
                raise Closed(f"{self.path} was closed", path=str(self.path))
            self._in_use += 1
            if self._readers:
                return self._readers.pop()
        try:
            return self._connect()
        except BaseException:
            with self._idle:
                self._in_use -= 1
                self._idle.notify_all()
            raise

    def _give_reader(self, connection: apsw.Connection) -> None:
        with self._idle:
            self._in_use -= 1
            if len(self._readers) < READERS_KEPT:
                self._readers.append(connection)
            else:
                connection.close()
            if self._closed or self._suspended:
                self._idle.notify_all()

    def _checkpoint(self, mode: int) -> None:
        with self._idle:
            while self._suspended:
                self._idle.wait()
            if self._closed:
                return
            if self._tender is None:
                self._tender = self._connect()
            self._in_use += 1
            tender = self._tender
        try:
            left, done = tender.wal_checkpoint(mode=mode)
            if mode == apsw.SQLITE_CHECKPOINT_RESTART or left == done:
                self._wal_bytes = 0
        except apsw.BusyError:
            pass  # somebody reads or writes just now; the next commit asks again
        except apsw.Error as error:
            raise WriteFailed(f"{self.path}: checkpoint: {error}") from error
        finally:
            with self._idle:
                self._in_use -= 1
                self._idle.notify_all()

    def _drop_connections(self, *, checkpoint: bool) -> None:
        found = [c for c in (*self._readers, self._tender, self._writer) if c is not None]
        self._readers.clear()
        self._tender = self._writer = None
        for connection in found:
            if not checkpoint:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()

    def _busy_handler(self) -> Callable[[int], bool]:
        """Wait in short, uneven steps: the lock is free again within a commit or a fold slice."""
        clock, timeout_s = self._clock, self._limits.busy_timeout_ms / 1000
        deadline = 0.0

        def wait(attempt: int) -> bool:
            nonlocal deadline
            if attempt == 0:
                deadline = clock.seconds() + timeout_s
            if clock.seconds() > deadline:
                return False
            sleep(random.uniform(0.0001, 0.0005) * min(attempt + 1, 10))
            return True

        return wait

    def _damaged(self, error: apsw.Error) -> MillstreamError:
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return CorruptionError(
                f"{self.path}: {error}; run `millstream doctor {self.path}`",
                what="file",
                where=str(self.path),
            )
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            return Overloaded(f"{self.path} is busy: {error}", path=str(self.path))
        return CannotOpen(f"{self.path}: {error}", path=str(self.path))


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise WriteFailed(f"nothing was written: {error}", cause=str(error)) from error


def _checked(key: bytes, value: bytes, crc: int) -> bytes:
    if row_checksum(key, value) != crc:
        raise CorruptionError(
            f"the row {key.hex()} is damaged: its checksum does not fit",
            what="row",
            where=key.hex(),
        )
    return value


def _authorize(
    action: int, first: str | None, second: str | None, _database: str | None, _by: str | None
) -> int:
    """Keep the application's statements away from our tables and from the transaction itself."""
    if action in _FORBIDDEN:
        return apsw.SQLITE_DENY
    named = {first, second} & {*_TABLES}
    return apsw.SQLITE_DENY if named else apsw.SQLITE_OK


_FORBIDDEN = {
    apsw.SQLITE_TRANSACTION,
    apsw.SQLITE_SAVEPOINT,
    apsw.SQLITE_ATTACH,
    apsw.SQLITE_DETACH,
    apsw.SQLITE_PRAGMA,
}
