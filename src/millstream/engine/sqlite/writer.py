"""The writer of a SQLite file: its transaction, its commit, and the errors of failed commits."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import apsw

from millstream.engine.checksum import row_checksum
from millstream.engine.commit import Commit, Row
from millstream.engine.disk import full
from millstream.engine.protocol import TableChange, WouldWait
from millstream.engine.sqlite.changes import ChangeRecorder, apply_changes
from millstream.engine.sqlite.checkpoint import WalPreallocation
from millstream.engine.sqlite.file import explained, is_damage
from millstream.engine.sqlite.rows import NUMBERED, OnDamage, SqliteReader, number_range
from millstream.engine.sqlite.schema import FIRST_INDEX, RECORD
from millstream.engine.sqlite.sql import (
    NOT_SQL,
    Authorizer,
    Parameters,
    fault_of,
    may_write,
    reason_of,
    run,
    violation,
)
from millstream.errors import (
    ConstraintViolation,
    CorruptionError,
    InvalidInput,
    MillstreamError,
    OutcomeUnknown,
    WriteFailed,
)
from millstream.format import keys
from millstream.interrupts import deferred
from millstream.record import SqlResult

PUT_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of values that one statement binds: a large commit is read from its spool in steps."""

SIGNAL_STEPS = 1_000_000
"""A long statement lets Python's signal handlers run after this number of steps, about every 20 ms."""

_PUT_RECORD = (
    f"INSERT INTO {RECORD} (key, value, crc) VALUES (?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value, crc = excluded.crc"
)
_PUT_NUMBERED = {
    kind: f"REPLACE INTO {table} VALUES (?,?,?)"  # short: apsw hashes the text at each use
    for kind, table in NUMBERED.items()
}
_PUT_DELTA = _PUT_NUMBERED[keys.DELTA]
Bindings = tuple[bytes | int, bytes, int]
"""The columns of a row: the key or its number, the value, the checksum."""

_DELETE_RECORD = f"DELETE FROM {RECORD} INDEXED BY {FIRST_INDEX} WHERE key = ?"
_DELETE_RECORDS = f"DELETE FROM {RECORD} INDEXED BY {FIRST_INDEX} WHERE key >= ? AND key < ?"
_DELETE_NUMBERED = {kind: f"DELETE FROM {table} WHERE id = ?" for kind, table in NUMBERED.items()}


class SqliteWriter(SqliteReader):
    """A connection for writes; as a context manager it is a transaction."""

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        busy: Callable[[int], bool],
        refused: Callable[[apsw.Error], MillstreamError],
        preallocation: WalPreallocation | None = None,
        on_damage: OnDamage | None = None,
        is_twofold: bool = False,
    ) -> None:
        super().__init__(connection, on_damage=on_damage, is_twofold=is_twofold)
        self._preallocation = preallocation
        self.waits = True
        """True if the next transaction waits for a lock of another process."""
        connection.set_busy_handler(
            lambda attempt: self.waits and not deferred.have_come and busy(attempt)
        )
        # The authorizer stays: each change of it would let SQLite prepare every statement anew, which
        # took 10 µs per statement of the application (2026-11).
        connection.authorizer = self._authorize
        connection.set_progress_handler(_go_on, SIGNAL_STEPS)
        self.allowed: Authorizer = may_write
        """The authorizer of statements on the application's tables."""
        self._is_applications = False
        """Whether the statement that is being prepared is the application's."""
        self._denied = 0
        """The last action that was denied."""
        self._statements = connection.cursor()
        """The cursor of the application's statements; a new cursor per statement took 0.6 µs."""
        self._refused = refused
        self._newest: int | None = None
        """The sequence of the newest delta in the file; None if unknown."""
        self._version = 0
        """SQLite's change counter at that delta, which counts the commits of all connections."""
        self._damage: CorruptionError | None = None
        """The damage that forbids a commit of this transaction."""

    def __enter__(self) -> Self:
        try:
            self._is_applications = False  # a signal may have come before `sql` has reset it
            self._execute("BEGIN IMMEDIATE")
            self._damage, self.waits = None, True
            if self.connection.data_version() != self._version:
                self._newest = None
        except apsw.Error as error:
            gave_up = not self.waits or deferred.have_come
            if gave_up and isinstance(error, apsw.BusyError):
                self.waits = True
                raise WouldWait from error
            raise self._refused(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_applications = False
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    def last_seq(self) -> int:
        """Return the sequence of the newest delta; read only if another process may have written."""
        if self._newest is None:
            self._newest = super().last_seq()
        return self._newest

    def failed(self, error: apsw.Error) -> MillstreamError:
        """Return the error for a failed read; forbid a commit if SQLite ended the transaction."""
        failure = super().failed(error)
        if isinstance(failure, CorruptionError) and not self.connection.in_transaction:
            self._damage = failure
        return failure

    def commit(self, commit: Commit) -> None:
        """Apply the deletes first, then the puts, and make the commit durable."""
        if self._damage is not None:
            raise CorruptionError(self._damage.message, **self._damage.data)
        self._is_applications = False
        try:
            if commit.deletes:
                self._delete(commit.deletes)
            for start, stop in commit.ranges:
                self._delete_range(start, stop)
            rows, newest = commit.rows, None
            if len(rows) == 1:  # most commits have one row, the delta
                ((key, value),) = rows
                if key[1] == keys.DELTA:
                    newest = keys.number(key)
                    self._execute(_PUT_DELTA, (newest, value, row_checksum(key, value)))
                else:
                    self._execute(*_bound(key, value))
            else:
                newest = self._put(rows)
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
        self._version = self.connection.data_version()  # last: an interrupt makes `last_seq` read

    def _put(self, rows: Collection[Row]) -> int | None:
        """Put rows in bounded steps, and return the sequence of the last delta among them."""
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

    def _delete(self, deletes: Iterable[bytes]) -> None:
        tables: dict[str, list[tuple[bytes | int]]] = {}
        for key in deletes:
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
            condition, bounds = number_range(start, stop)
            self._execute(f"DELETE FROM {table} WHERE {condition}", bounds)

    @property
    def is_open(self) -> bool:
        """Whether the transaction exists: `ON CONFLICT ROLLBACK` and an interrupt end it."""
        return self.connection.in_transaction

    def sql(self, statement: str, parameters: Parameters) -> SqlResult:
        """Run a statement on the application's own tables; Millstream's tables are denied."""
        self._is_applications = True
        try:
            # The authorizer of a recorder has to see every statement.
            can_cache = self.allowed is may_write
            result = run(
                self.connection, self._statements, statement, parameters, can_cache=can_cache
            )
        except NOT_SQL as error:
            self._is_applications = False
            refusal = self._explained(error, statement)
            if not self.is_open and self._damage is None:
                raise _ended(statement, str(error)) from error
            raise refusal from error
        finally:
            self._is_applications = False
        if not self.connection.in_transaction:
            raise _ended(statement, "it ended the transaction")
        return result

    def _explained(self, error: Exception, statement: str) -> MillstreamError:
        """Return our error for a statement of the application that failed."""
        if isinstance(error, apsw.AuthError):
            return InvalidInput(
                "tx.sql may read and write the application's own tables only "
                f"({reason_of(self._denied)}): {statement!r}",
                statement=statement,
            )
        if isinstance(error, apsw.ConstraintError):
            return violation(self.connection, error, statement)
        if isinstance(error, apsw.InterruptError):
            return WriteFailed(f"the statement was interrupted: {statement!r}")
        if isinstance(error, apsw.FullError | apsw.IOError | apsw.CorruptError):
            if is_damage(error):
                return self._not_written(error)
            if isinstance(error, apsw.FullError):
                return full(self._folder(), str(error))
            return WriteFailed(f"the statement could not be written: {error}")
        return InvalidInput(f"tx.sql: {fault_of(error)}", statement=statement)

    def interrupt(self) -> None:
        """End the running statement of another thread with an error."""
        self.connection.interrupt()

    def begin_statements(self) -> None:
        """Forget the rowid of our last insert: the application asks for rowids of its own inserts."""
        self.connection.set_last_insert_rowid(0)

    def part(self, action: str) -> SqlResult:
        """Run "SAVEPOINT", "RELEASE" or "ROLLBACK TO" for a part of the application's statements."""
        try:
            self._execute(f"{action} part")
        except apsw.Error as error:
            raise self._not_written(error) from error
        return SqlResult([], 0, -1, None)

    def check_constraints(self) -> None:
        """Raise `ConstraintViolation` if a deferred constraint does not hold."""
        if self.connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
            raise ConstraintViolation(
                "tx.sql: a deferred FOREIGN KEY constraint failed, so nothing was stored",
                kind="foreign key",
                table=None,
                columns=[],
                constraint=None,
                statement=None,
            )

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the writes inside the block if an exception leaves it."""
        self._execute("SAVEPOINT operation")
        try:
            yield
            self.check_constraints()
        except BaseException:
            if self.connection.in_transaction:
                self._execute("ROLLBACK TO operation")
                self._execute("RELEASE operation")
            raise
        self._execute("RELEASE operation")

    def record_changes(self) -> ChangeRecorder:
        """Return a recorder of changes to the application's tables, for this transaction."""
        return ChangeRecorder(self)

    def apply_changes(self, changes: Sequence[TableChange]) -> None:
        """Apply recorded changes in order; raise `TablesDiffer` if the tables do not fit."""
        apply_changes(self.connection, changes)

    def _authorize(
        self,
        action: int,
        first: str | None,
        second: str | None,
        database: str | None,
        by: str | None,
    ) -> int:
        if not self._is_applications:
            return apsw.SQLITE_OK
        answer = self.allowed(action, first, second, database, by)
        if answer != apsw.SQLITE_OK:
            self._denied = action
        return answer

    def _not_written(self, error: apsw.Error) -> MillstreamError:
        """Return the error for a failed write; damage forbids a commit, as rows may be incomplete."""
        if is_damage(error):
            damage = explained(error, self.connection.filename)
            assert isinstance(damage, CorruptionError)
            self._damage = damage
            return damage
        if isinstance(error, apsw.FullError):
            return full(self._folder(), str(error))
        return WriteFailed(f"nothing was written: {error}", cause=str(error))

    def _folder(self) -> str:
        return os.path.dirname(os.path.realpath(self.connection.filename))


def _ended(statement: str, reason: str) -> WriteFailed:
    return WriteFailed(
        f"the statement ended the transaction, so nothing was stored ({reason}): {statement!r}"
    )


def _go_on() -> bool:
    """Let a long statement go on; before the call Python has run the handlers of signals."""
    return False


def _bound(key: bytes, value: bytes) -> tuple[str, Bindings]:
    """Return the statement that puts a row, and its bindings."""
    statement = _PUT_NUMBERED.get(key[1])
    if statement is None:
        return _PUT_RECORD, (key, value, row_checksum(key, value))
    return statement, (keys.number(key), value, row_checksum(key, value))
