"""SQL on the application's own tables in a store's file; Millstream's tables are out of reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apsw

from millstream.engine.sqlite.schema import INBOX, INBOX_FAILED, PREFIX
from millstream.record import SqlResult

Parameters = Sequence[Any] | Mapping[str, Any]
Authorizer = Callable[[int, str | None, str | None, str | None, str | None], int]

NOT_SQL = apsw.Error, TypeError, ValueError, OverflowError
"""Errors of a statement that is invalid."""

_FORBIDDEN = {
    apsw.SQLITE_TRANSACTION,
    apsw.SQLITE_SAVEPOINT,
    apsw.SQLITE_ATTACH,
    apsw.SQLITE_DETACH,
    apsw.SQLITE_PRAGMA,
}
_INBOX = {INBOX, INBOX_FAILED}
"""Our tables whose rows the application may use."""

_ROWS = {apsw.SQLITE_READ, apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}
_READS = {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE}


def may_write(
    action: int, first: str | None, second: str | None, _database: str | None, _by: str | None
) -> int:
    """Authorize a statement: deny our tables, transactions, pragmas and attached databases."""
    if action in _FORBIDDEN:
        return apsw.SQLITE_DENY
    ours = any(name is not None and name.lower().startswith(PREFIX) for name in (first, second))
    if ours and action in _ROWS and first is not None and first.lower() in _INBOX:
        return apsw.SQLITE_OK
    return apsw.SQLITE_DENY if ours else apsw.SQLITE_OK


def may_read(
    action: int, first: str | None, second: str | None, database: str | None, by: str | None
) -> int:
    """Authorize a statement that only reads."""
    if action not in _READS:
        return apsw.SQLITE_DENY
    return may_write(action, first, second, database, by)


def run(
    connection: apsw.Connection, statement: str, parameters: Parameters, allowed: Authorizer
) -> SqlResult:
    """Run a statement under an authorizer; errors of SQLite pass through."""
    connection.authorizer = allowed
    before = connection.total_changes()
    try:
        rows = connection.execute(statement, parameters).fetchall()
        changed = connection.changes() if connection.total_changes() > before else 0
        return SqlResult(rows, changed)
    finally:
        connection.authorizer = None


def application_tables(connection: apsw.Connection) -> list[str]:
    """Return the names of the application's tables and views, in order."""
    rows = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name"
    )
    return [name for (name,) in rows if not name.lower().startswith((PREFIX, "sqlite_"))]


def stored_tables(connection: apsw.Connection) -> list[str]:
    """Return the application's tables that store rows: no views, no virtual tables.

    A virtual table stores its rows in ordinary tables, which are included.
    """
    rows = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 ORDER BY name"
    )
    return [name for (name,) in rows if not name.lower().startswith((PREFIX, "sqlite_stat"))]


def table_rows(connection: apsw.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield all rows of a table, in the order of its tree, without computed columns."""
    named = connection.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    columns = ", ".join(_quoted(str(name)) for (name,) in named)
    yield from connection.execute(f"SELECT {columns} FROM main.{_quoted(table)} NOT INDEXED")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
