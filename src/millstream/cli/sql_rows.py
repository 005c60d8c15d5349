"""The rows of SQL statements as text: a table on a terminal, lines in a pipe, or JSON.

Rows are printed as they come. A terminal gets a table for every thousand rows, because the widths of
a table are known only from its rows.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from millstream.cli.display import Amount, Table, note, plural, safe, say
from millstream.engine.sqlite.schema import INBOX_TABLES
from millstream.engine.sqlite.sql import application_tables
from millstream.errors import InvalidInput
from millstream.sql.registration import RELATIONS

ROWS_PER_TABLE = 1_000
BYTES_SHOWN = 32
"""The most bytes of a BLOB in a table."""


class SqlRows:
    """Prints the rows of one statement after the other."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._columns: list[str] = []
        self._rows: list[Sequence[Any]] = []
        self._count = 0

    def begin(self, columns: Sequence[str]) -> None:
        """Begin the rows of a statement."""
        self.end()
        self._columns, self._count = _distinct(columns), 0
        if columns and not self._as_json and not sys.stdout.isatty():
            say("\t".join(map(safe, columns)))

    def add(self, row: Sequence[Any]) -> None:
        """Print a row, or keep it for the table."""
        self._count += 1
        if self._as_json:
            cells = zip(self._columns, map(_json, row), strict=True)
            say(msgspec.json.encode(dict(cells)).decode())
        elif not sys.stdout.isatty():
            say("\t".join(map(_line_cell, row)))
        else:
            self._rows.append([_table_cell(value) for value in row])
            if len(self._rows) == ROWS_PER_TABLE:
                self._show()

    def end(self) -> None:
        """Print the rest of a statement's rows."""
        self._show()
        if self._columns and sys.stdout.isatty() and not self._as_json:
            note(plural(self._count, "row"))
        self._columns = []

    def drop(self) -> None:
        """Forget the rows of a statement that failed."""
        self._columns, self._rows = [], []

    def _show(self) -> None:
        if self._rows:
            Table(self._columns, self._rows).show()
            self._rows = []


def run_statements(connection: apsw.Connection, statements: str, rows: SqlRows) -> None:
    """Run statements in order, and print the rows of each statement. Raises `InvalidInput`."""
    changes = connection.total_changes()
    cursor = connection.cursor()

    def begin(cursor: apsw.Cursor, _statement: str, _bindings: Any) -> bool:
        rows.begin([name for name, *_ in cursor.get_description()])
        return True

    cursor.exec_trace = begin
    try:
        for row in cursor.execute(statements):
            rows.add(row)
        rows.end()
    except (apsw.Error, TypeError, ValueError) as error:
        rows.drop()
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(_reason(error, connection)) from error
    except BaseException:
        rows.drop()
        raise
    finally:
        cursor.close(True)  # the user may have stopped the first of several statements
    if changed := connection.total_changes() - changes:
        note(f"{plural(changed, 'row')} changed")


def listed_tables(connection: apsw.Connection) -> list[str]:
    """Return the names of all tables and views that a statement can use, Millstream's first."""
    has_file = bool(connection.db_filename("main"))
    inbox = list(INBOX_TABLES) if has_file else []
    return [*(relation.name for relation in RELATIONS), *inbox, *application_tables(connection)]


def _reason(error: Exception, connection: apsw.Connection) -> str:
    """Return an error of SQLite with the next step."""
    text = str(error).removeprefix(f"{type(error).__name__}: ")
    if text.startswith("no such table"):
        return f"{text}; the tables are {', '.join(listed_tables(connection))}"
    if isinstance(error, apsw.ReadOnlyError):
        return f"{text}; --write allows statements that change the application's tables"
    if isinstance(error, apsw.AuthError):
        return f"{text}; Millstream's own tables can only be read, except millstream_inbox"
    if isinstance(error, apsw.BindingsError):
        return "the statement has parameters (?), and the shell has no values for them"
    return text


def _distinct(names: Sequence[str]) -> list[str]:
    """Return column names that differ: a repeated name gets a number, as in SQLite's subqueries."""
    distinct: list[str] = []
    for name in names:
        choice, number = name, 0
        while choice in distinct:
            number += 1
            choice = f"{name}:{number}"
        distinct.append(choice)
    return distinct


def _json(value: Any) -> Any:
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes) else value


def _line_cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return safe(str(value))


def _table_cell(value: Any) -> str:
    if isinstance(value, bytes) and len(value) > BYTES_SHOWN:
        return f"x'{value[:BYTES_SHOWN].hex()}…' ({plural(len(value), 'byte')})"
    text = _line_cell(value)
    return Amount(text) if isinstance(value, int | float) else text
