"""Changes to the application's tables: recorded from `tx.sql` here, applied on another node.

Changes to rows travel as changesets of SQLite's session extension. A changeset holds values, so a
statement may use the time or random numbers. Changes to the schema travel as the statement itself.
A changeset identifies a row by its primary key: a table without a key, or with a row whose key is
NULL, is refused. Virtual and temporary tables are refused too, because no changeset describes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import apsw

from millstream.engine.protocol import SqlWriter, TableChange, TablesDiffer
from millstream.engine.sqlite.schema import PREFIX
from millstream.engine.sqlite.sql import Authorizer, may_write
from millstream.errors import InvalidInput
from millstream.record import SqlResult

_SCHEMA = re.compile(
    r"(?:\s+|--[^\n]*\n|/\*.*?\*/|;)*(?:CREATE|DROP|ALTER|REINDEX|ANALYZE)\b", re.I | re.S
)
_ROWS = {apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}
_LOCAL = {
    apsw.SQLITE_CREATE_VTABLE,
    apsw.SQLITE_CREATE_TEMP_INDEX,
    apsw.SQLITE_CREATE_TEMP_TABLE,
    apsw.SQLITE_CREATE_TEMP_TRIGGER,
    apsw.SQLITE_CREATE_TEMP_VIEW,
}


class TableWriter(SqlWriter, Protocol):
    """The writer of a SQLite file, as far as a recorder uses it."""

    connection: apsw.Connection
    allowed: Authorizer


class ChangeRecorder:
    """Records the changes of a transaction's statements, in order."""

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer
        self._connection = writer.connection
        self._session: apsw.Session | None = None
        self._changes: list[TableChange] = []
        self._written: set[str] = set()
        self._gathers = False
        """Whether the session runs a query, rather than a statement."""

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Run a statement, and record its changes."""
        self._written.clear()
        self._writer.allowed, self._connection.exec_trace = self._allow, self._before
        try:
            result = self._writer.sql(statement, parameters)
        finally:
            self._writer.allowed, self._connection.exec_trace = may_write, None
        for table in self._written:
            _check_key(self._connection, table)
        return result

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo and forget the statements inside if an exception leaves the block."""
        self._gather()
        before = len(self._changes)
        try:
            with self._writer.savepoint():
                yield
        except BaseException:
            self.close()
            del self._changes[before:]
            raise

    def finish(self) -> list[TableChange]:
        """Return the changes in order."""
        self._gather()
        return self._changes

    def close(self) -> None:
        """Close the session; a second call does nothing."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _allow(
        self,
        action: int,
        first: str | None,
        second: str | None,
        database: str | None,
        by: str | None,
    ) -> int:
        if self._gathers:
            return apsw.SQLITE_OK
        if action in _LOCAL:
            return apsw.SQLITE_DENY
        if action == apsw.SQLITE_PRAGMA and first == "table_xinfo":
            return (
                apsw.SQLITE_OK
            )  # the session asks for it when a table is changed for the first time
        if action in _ROWS and first is not None and not first.startswith("sqlite_"):
            self._written.add(first)
        return may_write(action, first, second, database, by)

    def _before(self, _cursor: apsw.Cursor, statement: str, _bindings: object) -> bool:
        """Prepare for a single statement of a call, before SQLite runs it."""
        if _SCHEMA.match(statement):
            self._gather()
            self._changes.append(TableChange(statement=statement))
        elif self._session is None:
            self._session = apsw.Session(self._connection, "main")
            self._session.table_filter(lambda table: not table.lower().startswith(PREFIX))
            self._session.attach()
        return True

    def _gather(self) -> None:
        """Take over the session's changeset, and end the session."""
        if self._session is None:
            return
        self._gathers = True
        try:
            if changeset := self._session.changeset():
                self._changes.append(TableChange(changeset=changeset))
        finally:
            self._gathers = False
            self.close()


def _check_key(connection: apsw.Connection, table: str) -> None:
    """Refuse a table whose rows cannot be identified on another node."""
    columns = connection.execute(
        "SELECT name, type, pk FROM pragma_table_info(?) ORDER BY pk", (table,)
    ).fetchall()
    if not columns:
        return  # the table was dropped
    key = [(str(name), str(kind)) for name, kind, number in columns if number]
    if not key:
        raise InvalidInput(
            f"tx.sql: the table {table} has no PRIMARY KEY, so its rows cannot be told apart on the "
            "other nodes of the cluster; give it one",
            table=table,
        )
    if len(key) == 1 and key[0][1].upper() == "INTEGER":
        return
    empty = " OR ".join(f"{_quoted(name)} IS NULL" for name, _ in key)
    null_rows = connection.execute(
        f"SELECT 1 FROM {_quoted(table)} WHERE {empty} LIMIT 1"
    ).fetchall()
    if null_rows:
        raise InvalidInput(
            f"tx.sql: the table {table} has a row with NULL in its PRIMARY KEY, and such rows cannot "
            "be told apart on the other nodes of the cluster; declare the key NOT NULL",
            table=table,
        )


def apply_changes(connection: apsw.Connection, changes: Sequence[TableChange]) -> None:
    """Apply the changes of the leader's transaction; raises `TablesDiffer` if that is impossible."""
    # The changesets contain the effects of triggers and cascades on the leader.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    try:
        for change in changes:
            if change.statement:
                connection.execute(change.statement)
            else:
                apsw.Changeset.apply(
                    change.changeset,
                    connection,
                    conflict=_conflict,
                    flags=apsw.SQLITE_CHANGESETAPPLY_FKNOACTION,
                )
    except (apsw.AbortError, apsw.SQLError, apsw.ConstraintError, apsw.SchemaChangeError) as error:
        raise TablesDiffer(
            f"what the leader did to the application's tables cannot be done here ({error}): the "
            "tables are not the leader's"
        ) from error
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)


def _conflict(reason: int, _change: object) -> int:
    """Ignore foreign keys until all pieces are applied, as on the leader; refuse other conflicts."""
    if reason == apsw.SQLITE_CHANGESET_FOREIGN_KEY:
        return apsw.SQLITE_CHANGESET_OMIT
    return apsw.SQLITE_CHANGESET_ABORT


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
