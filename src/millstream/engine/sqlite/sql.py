"""SQL on the application's own tables in a store's file; Millstream's tables are out of reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import apsw

from millstream.engine.sqlite.schema import INBOX, INBOX_FAILED, PREFIX
from millstream.errors import ConstraintViolation
from millstream.record import SqlResult, SqlRow, sql_row_type

Parameters = Sequence[Any] | Mapping[str, Any]
Authorizer = Callable[[int, str | None, str | None, str | None, str | None], int]

NOT_SQL = apsw.Error, TypeError, ValueError, KeyError, OverflowError
"""Errors of a statement that is invalid."""

_FORBIDDEN = {
    apsw.SQLITE_TRANSACTION: "the end of the block commits, and an exception rolls back",
    apsw.SQLITE_SAVEPOINT: "a failed statement undoes itself, and tx.savepoint() of ms.begin() undoes several",
    apsw.SQLITE_ATTACH: "other databases cannot take part in the commit",
    apsw.SQLITE_DETACH: "other databases cannot take part in the commit",
    apsw.SQLITE_PRAGMA: "a PRAGMA changes the connection of the store",
}
"""Actions that are denied, and the reason."""

_ASKED_BY_VIRTUAL_TABLES = {"data_version", "page_size"}
"""Pragmas that FTS5 and R-Tree read while a statement uses their tables. Reading a pragma changes nothing."""

_INBOX = {INBOX, INBOX_FAILED}
"""Our tables whose rows the application may use."""

_ROWS = {apsw.SQLITE_READ, apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}
_READS = {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE}


def may_write(
    action: int, first: str | None, second: str | None, _database: str | None, _by: str | None
) -> int:
    """Authorize a statement: deny our tables, transactions, pragmas and attached databases."""
    if _only_asks(action, first, second):
        return apsw.SQLITE_OK
    if action in _FORBIDDEN:
        return apsw.SQLITE_DENY
    ours = any(name is not None and name.lower().startswith(PREFIX) for name in (first, second))
    if ours and action in _ROWS and first is not None and first.lower() in _INBOX:
        return apsw.SQLITE_OK
    return apsw.SQLITE_DENY if ours else apsw.SQLITE_OK


def _only_asks(action: int, pragma: str | None, value: str | None) -> bool:
    return action == apsw.SQLITE_PRAGMA and value is None and pragma in _ASKED_BY_VIRTUAL_TABLES


def reason_of(action: int) -> str:
    """Return why an action was denied."""
    return _FORBIDDEN.get(action, "a name that begins with millstream_ is Millstream's")


def fault_of(error: Exception) -> str:
    """Return what is wrong with an invalid statement or its parameters."""
    if isinstance(error, KeyError):
        return f"the statement has a parameter {error.args[0]!r}, and no given value has this name"
    return str(error)


def may_read(
    action: int, first: str | None, second: str | None, database: str | None, by: str | None
) -> int:
    """Authorize a statement that only reads."""
    if action not in _READS and not _only_asks(action, first, second):
        return apsw.SQLITE_DENY
    return may_write(action, first, second, database, by)


def run_as(
    allowed: Authorizer, connection: apsw.Connection, statement: str, parameters: Parameters
) -> SqlResult:
    """Run a statement under an authorizer of its own; errors of SQLite pass through."""
    connection.authorizer = allowed
    try:
        return run(connection, connection.cursor(), statement, parameters)
    finally:
        connection.authorizer = None


def run(
    connection: apsw.Connection,
    cursor: apsw.Cursor,
    statement: str,
    parameters: Parameters,
    *,
    can_cache: bool = True,
) -> SqlResult:
    """Run a statement of the application on a cursor; errors of SQLite pass through.

    SQLite asks the authorizer when it prepares a statement. The flag keeps the prepared statements of
    the application apart from ours: the text of one of our statements is prepared anew.
    """
    if type(statement) is not str and not isinstance(statement, str):
        raise TypeError(f"a statement is text, not {type(statement).__name__}")
    kind = kind_of(statement)
    if kind == "changes":
        # Without a look at its rows, which apsw answers by an exception.
        cursor.execute(statement, parameters, can_cache=can_cache, prepare_flags=_APPLICATIONS)
        changed = connection.changes()
        return SqlResult([], changed, changed, connection.last_insert_rowid() or None)
    before = 0 if kind == "reads" else connection.total_changes()
    cursor.execute(statement, parameters, can_cache=can_cache, prepare_flags=_APPLICATIONS)
    try:
        rows = list(map(_row_type(cursor.get_description()), cursor.fetchall()))
    except apsw.ExecutionCompleteError:
        rows = []
    if kind == "reads":
        return SqlResult(rows, 0, -1, connection.last_insert_rowid() or None)
    changed = connection.changes() if connection.total_changes() > before else 0
    return SqlResult(rows, changed, changed, connection.last_insert_rowid() or None)


@lru_cache(maxsize=1_000)
def _row_type(description: tuple[tuple[str, Any], ...]) -> type[SqlRow]:
    return sql_row_type(tuple(name for name, _ in description))


@lru_cache(maxsize=1_000)
def kind_of(statement: str) -> Literal["reads", "changes", "other"]:
    """Return whether a text is certainly a single SELECT, or a single change that returns no rows.

    The answer for a common table expression is "other", because the expression may read or change.
    """
    text = statement.lstrip().upper()
    if ";" in text:
        return "other"
    if text.startswith("SELECT"):
        return "reads"
    if text.startswith(("INSERT", "UPDATE", "DELETE", "REPLACE")) and "RETURNING" not in text:
        return "changes"
    return "other"


_APPLICATIONS = apsw.SQLITE_PREPARE_PERSISTENT
"""The flag of the application's prepared statements."""

_KINDS = {
    apsw.SQLITE_CONSTRAINT_UNIQUE: "unique",
    apsw.SQLITE_CONSTRAINT_PRIMARYKEY: "primary key",
    apsw.SQLITE_CONSTRAINT_ROWID: "primary key",
    apsw.SQLITE_CONSTRAINT_NOTNULL: "not null",
    apsw.SQLITE_CONSTRAINT_CHECK: "check",
    apsw.SQLITE_CONSTRAINT_FOREIGNKEY: "foreign key",
    apsw.SQLITE_CONSTRAINT_DATATYPE: "datatype",
}
_CHANGES = {apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}


def violation(
    connection: apsw.Connection, error: apsw.ConstraintError, statement: str
) -> ConstraintViolation:
    """Return our error for a statement that would break a constraint.

    SQLite names columns as `table.column`, other constraints by their name or expression, and foreign
    keys not at all.
    """
    kind = _KINDS.get(getattr(error, "extendedresult", 0), "other")
    subject = str(error).partition(" constraint failed: ")[2]
    table, columns, constraint = None, [], None
    if kind in ("unique", "primary key", "not null") and not subject.startswith("index "):
        names = [name.rpartition(".") for name in subject.split(", ")]
        table, columns = names[0][0] or None, [column for _, _, column in names if column]
    elif kind == "datatype":
        table, _, column = str(error).rpartition(" ")[2].partition(".")
        columns = [column]
    elif subject:
        constraint = subject.removeprefix("index ").strip("'")
    return ConstraintViolation(
        f"tx.sql: {error}; the statement changed nothing: {statement!r}",
        kind=kind,
        table=table or _changed_table(connection, statement),
        columns=columns,
        constraint=constraint,
        statement=statement,
    )


def _changed_table(connection: apsw.Connection, statement: str) -> str | None:
    """Return the table that a statement itself changes, without its triggers; None if unknown."""
    tables: list[str] = []

    def note(
        action: int, first: str | None, _second: str | None, _database: str | None, by: str | None
    ) -> int:
        if action in _CHANGES and first is not None and by is None:
            tables.append(first)
        return apsw.SQLITE_OK

    before, connection.authorizer = connection.authorizer, note
    try:
        connection.execute(statement, can_cache=False, explain=1).fetchall()
    except (apsw.Error, TypeError, ValueError):
        pass  # the name of the table is a courtesy
    finally:
        connection.authorizer = before
    return next((name for name in tables if not name.startswith("sqlite_")), None)


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
