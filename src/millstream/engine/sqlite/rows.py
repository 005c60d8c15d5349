"""Rows in SQLite's tables: the table of each key, and reads in a transaction.

Rows that are keyed by one number lie in tables by that number; all other rows lie in one table with two
indexes by key. Statements are few and fixed, so that SQLite compiles each statement only once.

A read searches the first index. For a missing key, and after every range, it also searches the second
index: a key in only one index is damage (`schema.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from millstream.engine.checksum import checked
from millstream.engine.commit import Row
from millstream.engine.sqlite.file import explained
from millstream.engine.sqlite.schema import DELTA, FIRST_INDEX, PREFIX, RECORD, SECOND_INDEX
from millstream.engine.sqlite.sql import NOT_SQL, Parameters, fault_of, may_read, run_as
from millstream.errors import (
    CorruptionError,
    InvalidInput,
    MillstreamError,
    Overloaded,
)
from millstream.format import keys
from millstream.record import SqlResult

NUMBERED = {
    keys.PAYLOAD: f"{PREFIX}payload",
    keys.PAYLOAD_BLOCK: f"{PREFIX}block",
    keys.DELTA: DELTA,
}
TABLES = (RECORD, *NUMBERED.values())

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
_LAST = f"SELECT max(id) FROM {NUMBERED[keys.DELTA]}"

OnDamage = Callable[[CorruptionError], None]


class SqliteSnapshot:
    """Reads on a connection, inside its present transaction."""

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        on_damage: OnDamage | None = None,
        is_twofold: bool = False,
    ) -> None:
        """`on_damage` is called for every damaged row or page, before the error is raised.

        `is_twofold` says that the keys of records lie in two indexes, so that a vanished key is
        noticed.
        """
        self.connection = connection
        self._on_damage, self._is_twofold = on_damage, is_twofold
        self._execute = connection.execute

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        numbered = _GET_NUMBERED.get(key[1])
        try:
            if numbered is not None:
                row = self._execute(numbered, (keys.number(key),)).fetchone()
            else:
                row = self._execute(_GET_RECORD, (key,)).fetchone()
                if row is None and self._is_twofold:
                    self._confirm_absence(key)
            return None if row is None else checked(key, row[0], row[1])
        except apsw.Error as error:
            raise self._met(self.failed(error)) from error
        except _NOT_BYTES as error:
            raise self._met(_not_bytes(key, error)) from error
        except CorruptionError as error:
            self._met(error)
            raise

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Return up to `limit` rows with start <= key < stop."""
        table = NUMBERED.get(start[1])
        try:
            if table is None:
                rows = self._execute(_SCAN_RECORDS, (start, stop, limit))
                records = [(key, checked(key, value, crc)) for key, value, crc in rows]
                _check_order(records, start)
                if self._is_twofold:
                    self._confirm_range(start, stop, limit, records)
                return records
            condition, bounds = number_range(start, stop)
            rows = self._execute(
                f"SELECT id, value, crc FROM {table} WHERE {condition} ORDER BY id LIMIT ?",
                (*bounds, limit),
            )
            kind = keys.kind_of(start)
            records = [
                (key, checked(key, value, crc))
                for number, value, crc in rows
                for key in (keys.numbered(kind, number),)
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
        """Raise `CorruptionError` if the second index has a key that the first index misses."""
        if self._execute(_HAS_RECORD, (key,)).fetchone() is not None:
            raise _one_index(key)

    def _confirm_range(self, start: bytes, stop: bytes, limit: int, records: list[Row]) -> None:
        """Raise `CorruptionError` unless both indexes have the same keys in a range.

        The number of keys and the last key are compared instead of all keys: an index that misses a
        key ends at a later key, or has fewer keys.
        """
        last = records[-1][0] if records else None
        ((count, last_again),) = self._execute(_COUNT_RECORDS, (start, stop, limit))
        if count != len(records) or last_again != last:
            raise _one_index(start)

    def last_seq(self) -> int:
        """Return the sequence of the newest delta."""
        return self._number(_LAST)

    def failed(self, error: apsw.Error) -> MillstreamError:
        """Return the error of Millstream for a failed read."""
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            return Overloaded(f"{self.connection.filename} is busy: {error}")
        return explained(error, self.connection.filename)

    def _number(self, query: str) -> int:
        try:
            ((number,),) = self._execute(query).fetchall()
        except apsw.Error as error:
            raise self._met(self.failed(error)) from error
        return int(number or 0)

    def _met(self, error: MillstreamError) -> MillstreamError:
        if self._on_damage is not None and isinstance(error, CorruptionError):
            self._on_damage(error)
        return error


class SqliteReader(SqliteSnapshot):
    """A connection for reads in successive transactions, with one cursor."""

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        on_damage: OnDamage | None = None,
        is_twofold: bool = False,
    ) -> None:
        super().__init__(connection, on_damage=on_damage, is_twofold=is_twofold)
        self._execute = connection.cursor().execute

    def begin(self) -> None:
        """Start a transaction."""
        self._execute("BEGIN")

    def end(self) -> None:
        """End the transaction, and every query that is still open."""
        try:
            self._execute("COMMIT")
        except apsw.SQLError:
            if self.connection.in_transaction:
                raise
            # SQLite ended the transaction itself when a page could not be read.

    def query(self, statement: str, parameters: Parameters) -> SqlResult:
        """Read the application's own tables; a statement that would change anything is refused."""
        try:
            return run_as(may_read, self.connection, statement, parameters)
        except apsw.AuthError as error:
            raise InvalidInput(
                "ms.sql only reads, and only the application's own tables; to write them use a "
                f"transaction: `with ms.transaction() as tx: tx.sql(...)`: {statement!r}",
                statement=statement,
            ) from error
        except (apsw.IOError, apsw.CorruptError, apsw.BusyError, apsw.LockedError) as error:
            raise self.failed(error) from error
        except NOT_SQL as error:
            raise InvalidInput(f"ms.sql: {fault_of(error)}", statement=statement) from error

    def select(self, statement: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        """Return plain rows for one of our own statements on tables of the application."""
        try:
            return self._execute(statement, parameters).fetchall()
        except apsw.SQLError as error:
            raise InvalidInput(f"{self.connection.filename}: {error}") from error
        except apsw.Error as error:
            raise self._met(self.failed(error)) from error


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


def number_range(start: bytes, stop: bytes) -> tuple[str, tuple[int, ...]]:
    """Return a range of keys as a condition on numbers; the end of the type needs no bound."""
    first = keys.first_number_at(start)
    if stop[1] != start[1]:
        return "id >= ?", (first,)
    return "id >= ? AND id < ?", (first, keys.first_number_at(stop))
