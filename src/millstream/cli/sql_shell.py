"""The shell of `millstream sql`: a connection with the relations of a store, and its statements."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from millstream.cli.place import StorePlace
from millstream.cli.sql_prompt import SqlPrompt
from millstream.cli.sql_rows import SqlRows, run_statements
from millstream.engine.place import is_bucket
from millstream.engine.sqlite.checks import layer_for
from millstream.engine.sqlite.schema import INBOX_TABLES, PREFIX
from millstream.errors import InvalidInput
from millstream.sql import register

BUSY_MS = 5_000
"""How long a statement waits for a writer."""

STEPS_PER_LOOK = 10_000
"""Steps of SQLite between two looks for Ctrl-C."""


def run_shell(place: StorePlace, statement: str | None, *, write: bool, as_json: bool) -> None:
    """Run a statement; without one, run those on standard input, or show a prompt on a terminal."""
    with _connected(place, write=write) as connection:
        rows = SqlRows(as_json=as_json)
        if statement is None and sys.stdin.isatty():
            SqlPrompt(connection, rows).run()
        else:
            run_statements(connection, _read_input() if statement is None else statement, rows)


def _read_input() -> str:
    """Return the statements on standard input."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the statements on standard input are not UTF-8: {error}") from error


@contextmanager
def _connected(place: StorePlace, *, write: bool) -> Iterator[apsw.Connection]:
    """Open a store to be read, and a connection with its relations and the application's tables."""
    is_file = not (place.is_server or is_bucket(place.store))
    if write and not is_file:
        raise InvalidInput(
            f"--write is for the application's tables in a file, and {place.store.rpartition('@')[2]} "
            "is not a file; the command line has `millstream put` and `millstream append`"
        )
    with place.opened(mode="r") as ms:
        connection = _connect(place.store, write=write) if is_file else apsw.Connection(":memory:")
        try:
            connection.set_busy_timeout(BUSY_MS)
            connection.execute("PRAGMA trusted_schema = 0")
            connection.execute("PRAGMA foreign_keys = 1")
            register(connection, ms)
            if write:
                connection.authorizer = _may_write
            elif is_file:
                connection.execute("PRAGMA query_only = 1")
            # Python runs signal handlers between two steps of Python code, so SQLite calls some.
            connection.set_progress_handler(lambda: False, STEPS_PER_LOOK)
            yield connection
        finally:
            connection.close(True)


def _connect(path: str, *, write: bool) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE if write else apsw.SQLITE_OPEN_READONLY
    return apsw.Connection(path, flags=flags, vfs=layer_for(Path(path).absolute()))


_READS = {
    apsw.SQLITE_SELECT,
    apsw.SQLITE_READ,
    apsw.SQLITE_FUNCTION,
    apsw.SQLITE_RECURSIVE,
    apsw.SQLITE_ANALYZE,
    apsw.SQLITE_REINDEX,
}
_ROWS = {apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}


def _may_write(
    action: int, first: str | None, second: str | None, _database: str | None, _by: str | None
) -> int:
    """Authorize a statement: Millstream's own tables may be read, and only the inbox written."""
    if action in _READS:
        return apsw.SQLITE_OK
    if action == apsw.SQLITE_PRAGMA:
        return apsw.SQLITE_DENY if first == "writable_schema" else apsw.SQLITE_OK
    if action in _ROWS and first is not None and first.lower() in INBOX_TABLES:
        return apsw.SQLITE_OK
    names = (first,) if action in _ROWS else (first, second)
    is_ours = any(name is not None and name.lower().startswith(PREFIX) for name in names)
    return apsw.SQLITE_DENY if is_ours else apsw.SQLITE_OK
