"""What a store's file is compared with when it is opened first, and what is done about a difference.

    found                                       means                    is done
    the tables are not as they were made        damage                   refused
    deltas do not pass SQLite's check           damage                   refused
    a tree begins elsewhere, and all is sound   another tool's `VACUUM`  noted in the file's row
    a tree begins elsewhere, and not all is     damage                   refused
    tables of an earlier version, all sound     a file from then         completed, unless only read

All is sound if SQLite's check of the whole file finds nothing and the checksum of every row fits. That
takes as long as reading the file. So it is done only where something differs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    RECORD,
    Schema,
    complete_schema,
    read_schema,
    write_file_row,
)
from millstream.errors import CannotOpen, CorruptionError
from millstream.format import keys
from millstream.format.version import FORMAT

Heard = Callable[[str, int, int], None]
"""Told the stage, how many rows are done, and of how many; 0 if that is not known."""

BUSY_MS = 10_000
ROWS_PER_WORD = 1_000
STEPS_PER_WORD = 200_000
"""Of SQLite's machine, between two signs of life during its own check."""


def settle_file(connection: apsw.Connection, path: Path, *, read_only: bool) -> bool:
    """Compare a file with what it says of itself; True if its records have two indexes."""
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
            return True
        if read_only or checksums:
            return False
        check_all(connection)
        _write(connection, lambda: complete(connection, page_checksums=False))
        return True
    except CorruptionError as error:
        raise damaged(path, error.message) from error


def layer_for(path: Path) -> str | None:
    """The layer by which SQLite should reach a file: that of the checksums, if its pages have some."""
    layer = checksum_layer()
    if layer is None or not path.exists() or not path.stat().st_size:
        return None
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=plain_layer())
    try:
        connection.set_busy_timeout(BUSY_MS)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return layer if wants_layer(connection) else None
    except apsw.Error:
        return None  # the next connection will tell
    finally:
        connection.close()


def wants_layer(connection: apsw.Connection) -> bool:
    """Whether the pages of a file have checksums that count; if its schema is damaged, by its header."""
    if connection.reserve_bytes() != RESERVED_BYTES:
        return False
    try:
        return read_schema(connection).has_page_checksums(connection)
    except (CorruptionError, CannotOpen, UnicodeDecodeError):
        return True


def complete(connection: apsw.Connection, *, page_checksums: bool) -> None:
    """Give a file what it lacks, and say what it is now; inside a transaction of the caller."""
    if read_schema(connection).row is None:  # else another process was faster
        complete_schema(connection)
    write_file_row(connection, page_checksums=page_checksums)
    if connection.pragma("user_version") == FORMAT | PAGE_CHECKSUMS and not page_checksums:
        connection.execute(f"PRAGMA user_version = {FORMAT}")


def check_all(connection: apsw.Connection, heard: Heard | None = None) -> int:
    """Run SQLite's check of the whole file, and compare the checksum of every row; answers how many.

    Raises `CorruptionError` for the first that is damaged.
    """
    hear = heard or (lambda _stage, _done, _total: None)
    connection.set_progress_handler(lambda: bool(hear("checking the file", 0, 0)), STEPS_PER_WORD)
    try:
        _check(connection, "PRAGMA integrity_check(1)")
    finally:
        connection.set_progress_handler(None)
    return check_rows(connection, hear)


def check_rows(connection: apsw.Connection, heard: Heard | None = None) -> int:
    """Compare the checksum of every row; answers how many. Raises `CorruptionError` for one."""
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
    """Have SQLite check the table of deltas: the newest ones are named nowhere else."""
    _check(connection, f"PRAGMA integrity_check({DELTA})")
    query = f"SELECT count(*), min(id), max(id) FROM {DELTA}"
    found: list[Any] = connection.execute(query).fetchall()
    ((count, first, last),) = found
    if count and count != last - first + 1:
        raise CorruptionError(
            f"of the deltas {first:,} to {last:,} only {count:,} are there",
            what="delta",
            where=first,
        )


def _check(connection: apsw.Connection, statement: str) -> None:
    try:
        found = [str(row[0]) for row in connection.execute(statement)]
    except UnicodeDecodeError as error:  # a name is damaged
        found = [str(error)]
    if found != ["ok"]:
        raise CorruptionError(f"SQLite says: {found[0]}", what="file", where="")


def _check_vacuum(connection: apsw.Connection, schema: Schema) -> None:
    """Refuse a header that says `auto_vacuum` of a file whose second page is no map of pointers."""
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
"""Of SQLite's machine, between two looks whether to stop."""


def check_pages(connection: apsw.Connection, stop: Callable[[], bool], *, place: str) -> bool:
    """Read all tables and indexes, the application's own too; False if it was stopped.

    A page whose checksum does not fit is an error of SQLite; what else is wrong with the trees, and
    a row whose checksum does not fit, raises `CorruptionError`.
    """
    connection.set_progress_handler(stop, STEPS_PER_LOOK)
    try:
        found = connection.execute("PRAGMA integrity_check(1)").fetchall()
        check_rows(connection)
    except apsw.InterruptError:
        return False
    finally:
        connection.set_progress_handler(None)
    if found != [("ok",)]:
        raise CorruptionError(f"{place} is damaged: {found[0][0]}", what="file", where=place)
    return True
