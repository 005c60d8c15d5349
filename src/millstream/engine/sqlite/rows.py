"""Rows in SQLite's tables: how a key finds its table, and what a transaction does with rows.

What is keyed by one number lies in a table of its own, by that number; everything else in one table
with two indexes by key. Statements are few and fixed, so that SQLite compiles each only once.

A record is looked for by the first index. Where that misses a key, and behind every range, the second
one is asked: a key that only one of them has is damage (`sqlite_schema`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import apsw

from millstream.engine.checksum import checked, row_checksum
from millstream.engine.commit import Commit, Row
from millstream.engine.disk import full
from millstream.engine.protocol import WouldWait
from millstream.engine.sqlite.checkpoint import WalPreallocation
from millstream.engine.sqlite.file import explained, is_damage
from millstream.engine.sqlite.schema import DELTA, FIRST_INDEX, PREFIX, RECORD, SECOND_INDEX
from millstream.engine.sqlite.sql import NOT_SQL, Authorizer, Parameters, may_read, may_write, run
from millstream.errors import (
    CorruptionError,
    InvalidInput,
    MillstreamError,
    OutcomeUnknown,
    Overloaded,
    WriteFailed,
)
from millstream.format import keys
from millstream.record import SqlResult

NUMBERED = {
    keys.PAYLOAD: f"{PREFIX}payload",
    keys.PAYLOAD_BLOCK: f"{PREFIX}block",
    keys.DELTA: DELTA,
}
TABLES = (RECORD, *NUMBERED.values())

PUT_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of values that are bound at once: a large commit is read from its spool in parts."""

_PUT_RECORD = (
    f"INSERT INTO {RECORD} (key, value, crc) VALUES (?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value, crc = excluded.crc"
)
_PUT_NUMBERED = {
    kind: f"INSERT OR REPLACE INTO {table} (id, value, crc) VALUES (?, ?, ?)"
    for kind, table in NUMBERED.items()
}
Bindings = tuple[bytes | int, bytes, int]
"""A row as its table has it: the key or its number, the value, the checksum."""

_GET_RECORD = f"SELECT value, crc FROM {RECORD} INDEXED BY {FIRST_INDEX} WHERE key = ?"
_GET_NUMBERED = {
    kind: f"SELECT value, crc FROM {table} WHERE id = ?" for kind, table in NUMBERED.items()
}
_HAS_RECORD = f"SELECT 1 FROM {RECORD} INDEXED BY {SECOND_INDEX} WHERE key = ?"
_SCAN_RECORDS = (
    f"SELECT key, value, crc FROM {RECORD} INDEXED BY {FIRST_INDEX} "
    "WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
)
_COUNT_RECORDS = (
    f"SELECT count(*), max(key) FROM (SELECT key FROM {RECORD} INDEXED BY {SECOND_INDEX} "
    "WHERE key >= ? AND key < ? ORDER BY key LIMIT ?)"
)
_DELETE_RECORD = f"DELETE FROM {RECORD} INDEXED BY {FIRST_INDEX} WHERE key = ?"
_DELETE_RECORDS = f"DELETE FROM {RECORD} INDEXED BY {FIRST_INDEX} WHERE key >= ? AND key < ?"
_DELETE_NUMBERED = {kind: f"DELETE FROM {table} WHERE id = ?" for kind, table in NUMBERED.items()}
_LAST = f"SELECT max(id) FROM {NUMBERED[keys.DELTA]}"
_FIRST = f"SELECT min(id) FROM {NUMBERED[keys.DELTA]}"


class SqliteSnapshot:
    """Reads on one connection, inside whatever transaction it has."""

    on_damage: Callable[[CorruptionError], None] | None = None
    """Told of every damaged row or page that is met, before the caller is."""

    is_twofold = False
    """Whether the keys of records lie in two indexes, so that one that vanishes is noticed."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self._execute = connection.execute

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        numbered = _GET_NUMBERED.get(key[1])
        try:
            if numbered is not None:
                found = self._execute(numbered, (keys.number(key),)).fetchone()
            else:
                found = self._execute(_GET_RECORD, (key,)).fetchone()
                if found is None and self.is_twofold:
                    self._confirm_absence(key)
            return None if found is None else checked(key, found[0], found[1])
        except apsw.Error as error:
            raise self._met(self.failed(error)) from error
        except _NOT_BYTES as error:
            raise self._met(_not_bytes(key, error)) from error
        except CorruptionError as error:
            self._met(error)
            raise

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Up to `limit` rows with start <= key < stop."""
        table = NUMBERED.get(start[1])
        try:
            if table is None:
                found = self._execute(_SCAN_RECORDS, (start, stop, limit))
                records = [(key, checked(key, value, crc)) for key, value, crc in found]
                _check_order(records, start)
                if self.is_twofold:
                    self._confirm_range(start, stop, limit, records)
                return records
            condition, bounds = _number_range(start, stop)
            rows = self._execute(
                f"SELECT id, value, crc FROM {table} WHERE {condition} ORDER BY id LIMIT ?",
                (*bounds, limit),
            )
            prefix = start[:2]
            records = [
                (key, checked(key, value, crc))
                for number, value, crc in rows
                for key in (prefix + number.to_bytes(8, "big"),)
            ]
            _check_order(records, start)
            return records
        except apsw.Error as error:
            raise self._met(self.failed(error)) from error
        except _NOT_BYTES as error:
            raise self._met(_not_bytes(start, error)) from error
        except CorruptionError as error:
            self._met(error)
            raise

    def _confirm_absence(self, key: bytes) -> None:
        """Raise `CorruptionError` if the second index has a key that the first one misses."""
        if self._execute(_HAS_RECORD, (key,)).fetchone() is not None:
            raise _one_index(key)

    def _confirm_range(self, start: bytes, stop: bytes, limit: int, records: list[Row]) -> None:
        """Raise `CorruptionError` unless both indexes have the same keys in a range.

        The last key tells as well as all of them, since their number is compared too: a key that one
        index misses makes it end later, or with fewer.
        """
        last = records[-1][0] if records else None
        ((count, found),) = self._execute(_COUNT_RECORDS, (start, stop, limit))
        if count != len(records) or found != last:
            raise _one_index(start)

    def last_seq(self) -> int:
        """The sequence of the newest delta."""
        return self._number(_LAST)

    def first_seq(self) -> int:
        """The sequence of the oldest delta."""
        return self._number(_FIRST)

    def failed(self, error: apsw.Error) -> MillstreamError:
        """What an error of SQLite means to the caller of a read."""
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            return Overloaded(f"{self.connection.filename} is busy: {error}")
        return explained(error, self.connection.filename)

    def _number(self, query: str) -> int:
        try:
            ((found,),) = self._execute(query).fetchall()
        except apsw.Error as error:
            raise self._met(self.failed(error)) from error
        return int(found or 0)

    def _met(self, error: MillstreamError) -> MillstreamError:
        if self.on_damage is not None and isinstance(error, CorruptionError):
            self.on_damage(error)
        return error


class SqliteReader(SqliteSnapshot):
    """A connection to read on, one transaction after the other, with one cursor for all of them."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self._execute = connection.cursor().execute

    def begin(self) -> None:
        """Start a transaction."""
        self._execute("BEGIN")

    def end(self) -> None:
        """End the transaction, and with it whatever a query has left open."""
        try:
            self._execute("COMMIT")
        except apsw.SQLError:
            if self.connection.in_transaction:
                raise
            # SQLite gave it up when a page could not be read; the reader was told then

    def query(self, statement: str, parameters: Parameters) -> SqlResult:
        """Read the application's own tables; a statement that would change anything is refused."""
        try:
            return run(self.connection, statement, parameters, may_read)
        except apsw.AuthError as error:
            raise InvalidInput(
                "ms.sql only reads, and only the application's own tables; to write them use a "
                f"transaction: `with ms.transaction() as tx: tx.sql(...)`: {statement!r}",
                statement=statement,
            ) from error
        except (apsw.IOError, apsw.CorruptError, apsw.BusyError, apsw.LockedError) as error:
            raise self.failed(error) from error
        except NOT_SQL as error:
            raise InvalidInput(f"ms.sql: {error}", statement=statement) from error


class SqliteWriter(SqliteReader):
    """A connection to write on: entered, it is a transaction, until commit or rollback."""

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        busy: Callable[[int], bool],
        refused: Callable[[apsw.Error], MillstreamError],
        preallocation: WalPreallocation | None = None,
    ) -> None:
        super().__init__(connection)
        self._preallocation = preallocation
        self.waits = True
        """Whether the next transaction waits for a lock that another process has."""
        connection.set_busy_handler(lambda attempt: self.waits and busy(attempt))
        self.allowed: Authorizer = may_write
        """What statements on the application's tables may do."""
        self._refused = refused
        self._newest: int | None = None
        """The sequence of the newest delta in the file, if it is known."""
        self._version = 0
        """SQLite's change counter when that was so: it counts the commits of all connections."""
        self._damage: CorruptionError | None = None
        """Why this transaction cannot be committed any more."""

    def __enter__(self) -> Self:
        try:
            try:
                self._execute("BEGIN IMMEDIATE")
            except apsw.SQLError:
                if not self.connection.in_transaction:
                    raise
                self._execute("ROLLBACK")  # of one that was interrupted on its way out
                self._execute("BEGIN IMMEDIATE")
            self._damage, self.waits = None, True
            if self.connection.data_version() != self._version:
                self._newest = None
        except apsw.Error as error:
            if not self.waits and isinstance(error, apsw.BusyError):
                self.waits = True
                raise WouldWait from error
            raise self._refused(error) from error
        except BaseException:  # `__enter__` raised, so `__exit__` will not run: roll back here
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    def last_seq(self) -> int:
        """The sequence of the newest delta; looked for only if others may have written one."""
        if self._newest is None:
            self._newest = super().last_seq()
        return self._newest

    def failed(self, error: apsw.Error) -> MillstreamError:
        """As for a reader. What is left of the transaction, if SQLite has given it up, is refused."""
        found = super().failed(error)
        if isinstance(found, CorruptionError) and not self.connection.in_transaction:
            self._damage = found
        return found

    def commit(self, commit: Commit) -> None:
        """Write everything, and make it durable."""
        if self._damage is not None:
            raise CorruptionError(self._damage.message, **self._damage.data)
        try:
            if commit.deletes:
                self._delete(commit.deletes)
            for start, stop in commit.ranges:
                self._delete_range(start, stop)
            newest = self._put(commit.rows)
        except apsw.Error as error:
            raise self._not_written(error) from error
        if self._preallocation is not None:
            self._preallocation.ensure()
        try:
            self._execute("COMMIT")
        except apsw.Error as error:
            raise OutcomeUnknown(
                f"the commit failed and may or may not be durable: {error}; look whether it is "
                "there, or repeat it under a producer's sequence",
                cause=str(error),
            ) from error
        if newest is not None:
            self._newest = newest
        self._version = self.connection.data_version()  # last: if interrupted, it is looked for

    def _put(self, rows: Collection[Row]) -> int | None:
        """Put rows, a bounded part of them at a time; answers the last delta among them."""
        if len(rows) == 1:  # as most commits have: the delta
            ((key, value),) = rows
            statement, bindings = _bound(key, value)
            self._execute(statement, bindings)
            return bindings[0] if key[1] == keys.DELTA else None  # type: ignore[return-value]
        newest, size = None, 0
        tables: dict[str, list[Bindings]] = {}
        for key, value in rows:
            statement, bindings = _bound(key, value)
            tables.setdefault(statement, []).append(bindings)
            if key[1] == keys.DELTA:
                newest = keys.number(key)
            size += len(value)
            if size > PUT_BYTES_MAX:
                self._execute_all(tables)
                tables, size = {}, 0
        self._execute_all(tables)
        return newest

    def _execute_all(self, tables: dict[str, list[Bindings]]) -> None:
        for statement, many in tables.items():
            self.connection.executemany(statement, many)

    def _delete(self, found: Iterable[bytes]) -> None:
        tables: dict[str, list[tuple[bytes | int]]] = {}
        for key in found:
            statement = _DELETE_NUMBERED.get(key[1])
            if statement is None:
                tables.setdefault(_DELETE_RECORD, []).append((key,))
            else:
                tables.setdefault(statement, []).append((keys.number(key),))
        for statement, many in tables.items():
            self.connection.executemany(statement, many)

    def _delete_range(self, start: bytes, stop: bytes) -> None:
        table = NUMBERED.get(start[1])
        if table is None:
            self._execute(_DELETE_RECORDS, (start, stop))
        else:
            condition, bounds = _number_range(start, stop)
            self._execute(f"DELETE FROM {table} WHERE {condition}", bounds)

    def sql(self, statement: str, parameters: Parameters) -> SqlResult:
        """Run a statement on the application's own tables; ours are out of its reach."""
        try:
            return run(self.connection, statement, parameters, self.allowed)
        except apsw.AuthError as error:
            raise InvalidInput(
                f"tx.sql may read and write the application's own tables only: {statement!r}",
                statement=statement,
            ) from error
        except (apsw.FullError, apsw.IOError, apsw.CorruptError) as error:
            if is_damage(error):
                raise self._not_written(error) from error
            if isinstance(error, apsw.FullError):
                raise full(self._folder(), str(error)) from error
            raise WriteFailed(f"the statement could not be written: {error}") from error
        except NOT_SQL as error:
            raise InvalidInput(f"tx.sql: {error}", statement=statement) from error
        finally:
            if not self.connection.in_transaction and self._damage is None:
                raise WriteFailed(
                    f"the statement ended the transaction, so nothing was stored: {statement!r}"
                )

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Writes inside it are undone if it is left by an exception."""
        self._execute("SAVEPOINT operation")
        try:
            yield
            if self.connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
                raise InvalidInput("tx.sql: a deferred FOREIGN KEY constraint failed")
        except BaseException:
            if self.connection.in_transaction:
                self._execute("ROLLBACK TO operation")
                self._execute("RELEASE operation")
            raise
        self._execute("RELEASE operation")

    def _not_written(self, error: apsw.Error) -> MillstreamError:
        """Why a write failed. One that met damage may have left a part: nothing is committed then."""
        if is_damage(error):
            found = explained(error, self.connection.filename)
            assert isinstance(found, CorruptionError)
            self._damage = found
            return found
        if isinstance(error, apsw.FullError):
            return full(self._folder(), str(error))
        return WriteFailed(f"nothing was written: {error}", cause=str(error))

    def _folder(self) -> str:
        return os.path.dirname(os.path.realpath(self.connection.filename))


def _bound(key: bytes, value: bytes) -> tuple[str, Bindings]:
    """The statement that puts a row, and what is bound to it."""
    statement = _PUT_NUMBERED.get(key[1])
    if statement is None:
        return _PUT_RECORD, (key, value, row_checksum(key, value))
    return statement, (keys.number(key), value, row_checksum(key, value))


_NOT_BYTES = (TypeError, UnicodeDecodeError, OverflowError)


def _not_bytes(key: bytes, error: Exception) -> CorruptionError:
    return CorruptionError(
        f"a row at or after {key.hex()} does not hold bytes: {error}", what="row", where=key.hex()
    )


def _one_index(key: bytes) -> CorruptionError:
    return CorruptionError(
        f"a row at or after {key.hex()} is damaged: one index of the records has it, and the other "
        "has not",
        what="index",
        where=key.hex(),
    )


def _check_order(records: list[Row], start: bytes) -> None:
    """Raise `CorruptionError` unless keys ascend from `start` on: SQLite seeks, and does not compare."""
    before = None
    for key, _ in records:
        if key < start if before is None else key <= before:
            raise CorruptionError(
                f"rows from {start.hex()} on are damaged: they are out of order",
                what="index",
                where=start.hex(),
            )
        before = key


def _number_range(start: bytes, stop: bytes) -> tuple[str, tuple[int, ...]]:
    """A range of keys as a condition on their numbers; the end of the type is no bound at all."""
    first = _least_number(start)
    if stop[1] != start[1]:
        return "id >= ?", (first,)
    return "id >= ? AND id < ?", (first, _least_number(stop))


def _least_number(key: bytes) -> int:
    """The number of the first row at or after a key, which may be shorter or longer than a row's."""
    return keys.number(key[:10].ljust(10, b"\x00")) + (len(key) > 10)
