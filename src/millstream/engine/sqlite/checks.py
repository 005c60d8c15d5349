"""Checks of a store's file: a few on opening, and a full check of all pages and rows on demand.

    difference on opening                       meaning                  action
    the tables are not as they were made        damage                   refused
    deltas do not pass SQLite's check           damage                   refused
    a tree begins elsewhere, and all is sound   another tool's `VACUUM`  noted in the file's row
    a tree begins elsewhere, and not all is     damage                   refused
    tables of an earlier version, all sound     a file from then         completed, unless only read

A file is sound if SQLite's check of the complete file finds nothing and the checksum of every row fits.
This takes as long as reading the file, so opening does it only after a difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from millstream.engine.checksum import checked
from millstream.engine.sqlite.file import PAGE_CHECKSUMS, damaged, no_layer
from millstream.engine.sqlite.pages import (
    RESERVED_BYTES,
    checksum_layer,
    is_layered,
    is_verified,
    plain_layer,
)
from millstream.engine.sqlite.rows import NUMBERED
from millstream.engine.sqlite.schema import (
    DELTA,
    PREFIX,
    RECORD,
    Schema,
    complete_schema,
    create_inbox,
    has_inbox,
    read_schema,
    write_file_row,
)
from millstream.errors import CannotOpen, CorruptionError
from millstream.format import keys
from millstream.format.version import FORMAT

Heard = Callable[[str, int, int], None]
"""Receives progress: the stage, the rows done, and the total; 0 for an unknown total."""

BUSY_MS = 10_000
ROWS_PER_WORD = 1_000
STEPS_PER_WORD = 200_000
"""Steps of SQLite's virtual machine between two progress reports of its own check."""


def settle_file(connection: apsw.Connection, path: Path, *, read_only: bool) -> bool:
    """Compare a file with its schema and its own row; True if its records have two indexes."""
    try:
        schema = read_schema(connection)
        _check_vacuum(connection, schema)
        _check_deltas(connection)
        checksums = is_verified(connection)
        if not read_only and checksums != schema.has_page_checksums(connection):
            if connection.reserve_bytes() == RESERVED_BYTES and not is_layered(connection):
                raise no_layer(path)
            raise CorruptionError("its header is not what was written", what="file", where="")
        if schema.row is not None:
            if schema.is_moved:
                check_all(connection)
                if not read_only:
                    _write(connection, lambda: complete(connection, page_checksums=checksums))
            if not read_only and not has_inbox(connection):
                _write(connection, lambda: create_inbox(connection))
            return True
        if read_only or checksums:
            return False
        check_all(connection)
        _write(connection, lambda: complete(connection, page_checksums=False))
        return True
    except CorruptionError as error:
        raise damaged(path, error.message) from error


def layer_for(path: Path) -> str | None:
    """Return the layer for a file: the checksum layer if its pages have checksums, else None."""
    layer = checksum_layer()
    if layer is None or not path.exists() or not path.stat().st_size:
        return None
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=plain_layer())
    try:
        connection.set_busy_timeout(BUSY_MS)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return layer if wants_layer(connection) else None
    except apsw.Error:
        return None  # the next connection reports the error
    finally:
        connection.close()


def wants_layer(connection: apsw.Connection) -> bool:
    """True if the pages of a file have valid checksums; with a damaged schema, the header decides."""
    if connection.reserve_bytes() != RESERVED_BYTES:
        return False
    try:
        return read_schema(connection).has_page_checksums(connection)
    except (CorruptionError, CannotOpen, UnicodeDecodeError):
        return True


def complete(connection: apsw.Connection, *, page_checksums: bool) -> None:
    """Add missing tables to a file, and update its own row; inside a transaction of the caller."""
    row = read_schema(connection).row
    if row is None:  # otherwise another process was faster
        complete_schema(connection)
    shrunk = 0 if row is None else row.shrunk
    write_file_row(connection, page_checksums=page_checksums, shrunk=shrunk)
    if connection.pragma("user_version") == FORMAT | PAGE_CHECKSUMS and not page_checksums:
        connection.execute(f"PRAGMA user_version = {FORMAT}")


def check_all(connection: apsw.Connection, heard: Heard | None = None) -> int:
    """Run SQLite's check of the file, compare the checksum of every row, and return their number.

    Raises `CorruptionError` for the first damaged row.
    """
    hear = heard or (lambda _stage, _done, _total: None)
    connection.set_progress_handler(lambda: bool(hear("checking the file", 0, 0)), STEPS_PER_WORD)
    try:
        _raise_first(check_trees(connection, most=1).problems)
    finally:
        connection.set_progress_handler(None)
    return check_rows(connection, hear)


class TreeCheck(NamedTuple):
    """The result of SQLite's check of a file."""

    problems: list[str]
    """At most as many as were asked for."""
    unchecked: dict[str, str]
    """Tables of the application that SQLite cannot check on this connection, and the reason."""


def check_trees(connection: apsw.Connection, *, most: int = 100) -> TreeCheck:
    """Have SQLite check all trees and pages of a file, also of the application.

    An index may need a function or a collation that only the application registers. Then SQLite checks
    no table, so this checks the tables one by one, without the lists of free pages. CHECK constraints
    are the application's matter, and often call functions.
    """
    connection.pragma("ignore_check_constraints", True)
    try:
        return TreeCheck(_problems(connection, f"PRAGMA integrity_check({most})"), {})
    except apsw.SQLError as error:
        if not needs_application(error):
            raise
        return _check_each_table(connection)
    finally:
        connection.pragma("ignore_check_constraints", False)


_NEEDS_APPLICATION = re.compile("(unknown|no such) function|no such collation sequence")


def needs_application(error: apsw.Error) -> bool:
    """Return whether a statement failed for a function or collation that the application registers."""
    return _NEEDS_APPLICATION.search(str(error)) is not None


def _check_each_table(connection: apsw.Connection) -> TreeCheck:
    check = TreeCheck([], {})
    tables: list[Any] = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 ORDER BY name"
    ).fetchall()
    for (table,) in tables:
        try:
            name = apsw.format_sql_value(table)
            check.problems.extend(_problems(connection, f"PRAGMA integrity_check({name})"))
        except apsw.SQLError as error:
            if table.lower().startswith(PREFIX) or not needs_application(error):
                raise
            check.unchecked[table] = str(error)
    return check


def check_rows(connection: apsw.Connection, heard: Heard | None = None) -> int:
    """Compare the checksum of every row, and return their number. Raises `CorruptionError`."""
    done = 0
    total = sum(
        connection.execute(f"SELECT count(*) FROM {table}").get
        for table in (RECORD, *NUMBERED.values())
    )
    for kind, table in ((None, RECORD), *NUMBERED.items()):
        column = "key" if kind is None else "id"
        for place, value, crc in connection.execute(f"SELECT {column}, value, crc FROM {table}"):
            key = place if kind is None else keys.numbered(kind, place)
            checked(key, value, crc)
            done += 1
            if heard is not None and done % ROWS_PER_WORD == 0:
                heard("checking rows", done, total)
    return done


def _check_deltas(connection: apsw.Connection) -> None:
    """Have SQLite check the table of deltas: no other row refers to the newest deltas."""
    _raise_first(_problems(connection, f"PRAGMA integrity_check({DELTA})"))
    query = f"SELECT count(*), min(id), max(id) FROM {DELTA}"
    rows: list[Any] = connection.execute(query).fetchall()
    ((count, first, last),) = rows
    if count and count != last - first + 1:
        raise CorruptionError(
            f"of the deltas {first:,} to {last:,} only {count:,} are there",
            what="delta",
            where=first,
        )


def _problems(connection: apsw.Connection, statement: str) -> list[str]:
    try:
        messages = [str(row[0]) for row in connection.execute(statement)]
    except UnicodeDecodeError as error:  # a name is damaged
        messages = [str(error)]
    return [] if messages == ["ok"] else messages


def _raise_first(problems: list[str]) -> None:
    if problems:
        raise CorruptionError(f"SQLite says: {problems[0]}", what="file", where="")


def _check_vacuum(connection: apsw.Connection, schema: Schema) -> None:
    """Refuse a header with `auto_vacuum` if the second page of the file is no map of pointers."""
    if connection.pragma("auto_vacuum") and 2 in schema.roots.values():
        raise CorruptionError("its header is not what was written", what="file", where="")


def _write(connection: apsw.Connection, change: Callable[[], None]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        change()
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


STEPS_PER_LOOK = 10_000
"""Steps of SQLite's virtual machine between two questions whether to stop."""


def check_pages(connection: apsw.Connection, stop: Callable[[], bool], *, place: str) -> bool:
    """Read all tables and indexes, also of the application; False if `stop` ended the check.

    A page with a wrong checksum is an error of SQLite. Other damage of the trees, and a row with a
    wrong checksum, raises `CorruptionError`.
    """
    connection.set_progress_handler(stop, STEPS_PER_LOOK)
    try:
        problems = check_trees(connection, most=1).problems
        check_rows(connection)
    except apsw.InterruptError:
        return False
    finally:
        connection.set_progress_handler(None)
    if problems:
        raise CorruptionError(f"{place} is damaged: {problems[0]}", what="file", where=place)
    return True
