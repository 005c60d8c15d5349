"""The application's own tables in a cluster: what `tx.sql` changed on the leader, applied elsewhere.

What statements do to rows travels as changesets of SQLite's session extension: values, so a statement
may ask for the time or for random numbers. What they do to the schema travels as the statement itself.
A changeset knows a row by its primary key: a table without one, or with a row whose key is NULL, is
refused. So are virtual and temporary tables, which no changeset describes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import apsw

from millstream.cluster.entry import Differs, TableChange
from millstream.engine.protocol import SqlWriter, Writer
from millstream.engine.sqlite.rows import SqliteWriter
from millstream.engine.sqlite.schema import PREFIX
from millstream.engine.sqlite.sql import may_write
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


class Recorder:
    """Notes what the statements of one transaction change, in order."""

    def __init__(self, writer: SqlWriter) -> None:
        self._writer = cast(SqliteWriter, writer)
        self._connection = self._writer.connection
        self._session: apsw.Session | None = None
        self._changes: list[TableChange] = []
        self._written: set[str] = set()
        self._gathers = False
        """Whether it is the session that asks, rather than a statement."""

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Run a statement, and note what it changes."""
        self._written.clear()
        self._writer.allowed, self._connection.exec_trace = self._allow, self._before
        try:
            found = self._writer.sql(statement, parameters)
        finally:
            self._writer.allowed, self._connection.exec_trace = may_write, None
        for table in self._written:
            _check_key(self._connection, table)
        return found

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Statements inside it are undone, and forgotten, if it is left by an exception."""
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
        """What was changed, in order."""
        self._gather()
        return self._changes

    def close(self) -> None:
        """Let go; a second call does nothing."""
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
            return apsw.SQLITE_OK  # the session asks for it when a table is first changed
        if action in _ROWS and first is not None and not first.startswith("sqlite_"):
            self._written.add(first)
        return may_write(action, first, second, database, by)

    def _before(self, _cursor: apsw.Cursor, statement: str, _bindings: object) -> bool:
        """Called with each single statement of a call, before it runs."""
        if _SCHEMA.match(statement):
            self._gather()
            self._changes.append(TableChange(statement=statement))
        elif self._session is None:
            self._session = apsw.Session(self._connection, "main")
            self._session.table_filter(lambda table: not table.lower().startswith(PREFIX))
            self._session.attach()
        return True

    def _gather(self) -> None:
        """Take over what the session has seen, and end it."""
        if self._session is None:
            return
        self._gathers = True
        try:
            if found := self._session.changeset():
                self._changes.append(TableChange(changeset=found))
        finally:
            self._gathers = False
            self.close()


def _check_key(connection: apsw.Connection, table: str) -> None:
    """Refuse a table whose rows cannot be named on another node."""
    columns = connection.execute(
        "SELECT name, type, pk FROM pragma_table_info(?) ORDER BY pk", (table,)
    ).fetchall()
    if not columns:
        return  # it was dropped
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
    found = connection.execute(f"SELECT 1 FROM {_quoted(table)} WHERE {empty} LIMIT 1").fetchall()
    if found:
        raise InvalidInput(
            f"tx.sql: the table {table} has a row with NULL in its PRIMARY KEY, and such rows cannot "
            "be told apart on the other nodes of the cluster; declare the key NOT NULL",
            table=table,
        )


def apply(writer: Writer, changes: Sequence[TableChange]) -> None:
    """Do to the tables what the leader's transaction did; raises `Differs` if that is not possible."""
    connection = cast(SqliteWriter, writer).connection
    # What triggers and cascades did on the leader is in the changesets.
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
        raise Differs(
            f"what the leader did to the application's tables cannot be done here ({error}): the "
            "tables are not the leader's"
        ) from error
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)


def _conflict(reason: int, _change: object) -> int:
    """Foreign keys hold once all pieces are there, as on the leader; anything else is a difference."""
    if reason == apsw.SQLITE_CHANGESET_FOREIGN_KEY:
        return apsw.SQLITE_CHANGESET_OMIT
    return apsw.SQLITE_CHANGESET_ABORT


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
