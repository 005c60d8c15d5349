"""Copies of a store: a file page by page into a file, any other pair of places row by row.

SQLite's online backup copies a file in one snapshot, beside running commits, with the application's
own tables, indexes, triggers and views. The copy is written under a temporary name beside its target,
is compared with the snapshot, and gets its name last. So an incomplete copy never has the name of a
store, and an interrupted copy starts again.

A bucket cannot hold the application's tables. A store with tables is copied into a bucket only if the
caller allows to leave them behind.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import apsw

from millstream.clock import SystemClock
from millstream.engine.disk import full, sync_folder
from millstream.engine.open import open_engine
from millstream.engine.place import IN_MEMORY, check_file, is_bucket
from millstream.engine.row_copy import Heard, compare_rows, copy_rows
from millstream.engine.sqlite.checks import layer_for
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.file import explained, inspect, patience
from millstream.engine.sqlite.neighbour import is_open_here
from millstream.engine.sqlite.rows import SqliteReader
from millstream.engine.sqlite.sql import application_tables, stored_tables, table_rows
from millstream.engine.sqlite.unfinished_file import has_log, name_new_file, partial_file
from millstream.errors import CannotOpen, CorruptionError, DiskFull, InvalidInput, MillstreamError

PARTIAL = ".copying"
"""Suffix of the name of an incomplete copy."""

IN_USE_S = 5.0
"""How long a copy waits while the file that it replaces is in use."""


class StoreCopy(NamedTuple):
    """The result of a copy of a store."""

    rows: int
    """Rows of Millstream that are equal in source and target."""
    bytes: int
    written: int
    """Rows that the target did not have, or had with other values."""
    tables: list[str]
    """The application's tables and views in the copy."""
    left_behind: list[str]
    """The application's tables and views that the copy lacks."""


def copy_store(
    source: str,
    target: str,
    *,
    replace: bool = False,
    without_tables: bool = False,
    heard: Heard | None = None,
) -> StoreCopy:
    """Copy a store to an empty place, and compare source and target.

    `replace` replaces the file of a store that no process uses. Raises `CannotOpen` if the target
    holds another store, and `InvalidInput` if the application's tables would be left behind without
    `without_tables`.
    """
    if IN_MEMORY in (source, target):
        raise InvalidInput("a store in memory is copied nowhere: copy files and buckets")
    with ExitStack() as opened:
        origin = open_engine(source, mode="r", create=False)
        opened.callback(origin.close)
        if isinstance(origin, SqliteEngine) and not is_bucket(target):
            return _copy_file(origin, Path(target), replace=replace, hear=heard or _quiet)
        if replace:
            raise InvalidInput(
                f"only a file can be replaced, by a copy of a file: {target} was left as it is"
            )
        left_behind = _tables_of(origin) if isinstance(origin, SqliteEngine) else []
        if left_behind and not without_tables:
            raise InvalidInput(
                f"{source} has tables of the application, and {target} cannot hold them: "
                f"{', '.join(left_behind)}. Nothing was copied: copy to a file to have them too, or "
                "say that they may stay behind (--without-tables)"
            )
        made = open_engine(target)
        opened.callback(made.close)
        report = copy_rows(origin, made, heard)
        return StoreCopy(*report, tables=[], left_behind=left_behind)


def _quiet(_stage: str, _done: int, _total: int) -> None:
    """Ignore progress."""


def _tables_of(engine: SqliteEngine) -> list[str]:
    with engine.read() as snapshot:
        return application_tables(snapshot.connection)


def _copy_file(source: SqliteEngine, target: Path, *, replace: bool, hear: Heard) -> StoreCopy:
    check_file(target)
    place = Path(os.path.realpath(target))
    _check_target(source, place, shown=target, replace=replace)
    if source.last_seq() == 0:
        raise CannotOpen(f"there is no store at {source.place}", path=source.place)
    results: list[StoreCopy] = []

    def check(snapshot: SqliteReader) -> None:
        results.append(_compare(snapshot, partial, target, hear))

    try:
        with partial_file(place, PARTIAL, shown=target, work="copy") as partial:
            source.copy_to(partial, heard=lambda done, of: hear("copying", done, of), check=check)
            os.chmod(partial, os.stat(source.path).st_mode & 0o666)
            _give_name(partial, place, shown=target, replace=replace)
            sync_folder(place)
    except apsw.FullError as error:
        raise _disk_full(target, full(place.parent, str(error))) from error
    except apsw.Error as error:
        raise explained(error, target) from error
    except OSError as error:
        raise CannotOpen(
            f"{source.place} could not be copied to {target}: {error.strerror or error}; nothing "
            "is there now that was not before",
            path=str(target),
        ) from error
    return results[0]


def _disk_full(target: Path, error: DiskFull) -> MillstreamError:
    return DiskFull(
        f"the copy to {target} broke off: the disk is full, and what was copied is removed again. "
        "Free space on the disk, and copy once more",
        **error.data,
    )


def _check_target(source: SqliteEngine, place: Path, *, shown: Path, replace: bool) -> None:
    """Refuse a target that exists, before any byte is copied."""
    if place.exists() and os.path.samefile(place, source.path):
        raise InvalidInput(f"{shown} is the store itself: copy it to another file")
    if not place.parent.is_dir():
        raise CannotOpen(
            f"{shown}: the directory {place.parent} does not exist; create it first",
            path=str(shown),
        )
    if place.is_dir():
        raise CannotOpen(f"{shown} is a directory; name a file in it", path=str(shown))
    if not place.exists() or not place.stat().st_size:
        if has_log(place):
            raise CannotOpen(
                f"{shown}-wal is there without its store, and would spoil the copy: move it away",
                path=str(shown),
            )
        return
    if not replace:
        raise CannotOpen(
            f"{shown} is there already, and was left as it is: copy to another name, or replace it "
            "(--replace)",
            path=str(shown),
        )
    inspect(place)  # only a store is replaced


def _give_name(partial: Path, place: Path, *, shown: Path, replace: bool) -> None:
    """Give a complete copy the name of the target, unless another program has created the target."""
    if replace and place.exists() and place.stat().st_size:
        _replace(partial, place, shown)
    else:
        name_new_file(partial, place, shown=shown)


def _replace(partial: Path, place: Path, shown: Path) -> None:
    """Replace the file of a store that no process uses by a copy.

    The write-ahead log of the old file must go first: SQLite would read it into the copy. SQLite
    leaves write-ahead mode only for a single connection, and the lock is held until the rename.
    """
    in_use = CannotOpen(
        f"{shown} is in use, and was left as it is: close it everywhere, or copy to another name",
        path=str(shown),
        again=True,
    )
    if is_open_here(place):
        raise in_use
    old = apsw.Connection(str(place), flags=apsw.SQLITE_OPEN_READWRITE, vfs=layer_for(place))
    try:
        old.set_busy_handler(patience(SystemClock(), IN_USE_S))
        if old.pragma("journal_mode", "DELETE") != "delete":
            raise in_use
        old.execute("BEGIN EXCLUSIVE")
        os.rename(partial, place)
    except apsw.BusyError as error:
        raise in_use from error
    finally:
        old.close()


def _compare(snapshot: SqliteReader, partial: Path, shown: Path, hear: Heard) -> StoreCopy:
    """Read the complete copy, and compare every row of every table with the snapshot."""
    made = open_engine(partial, mode="r")
    try:
        assert isinstance(made, SqliteEngine)
        hear("checking", 0, 0)
        made.verify(lambda: False)
        report = compare_rows(snapshot, made, hear)
        with made.read() as copy:
            if _schema(copy) != _schema(snapshot):
                raise _differs(shown, "its tables, indexes, triggers and views")
            for table in stored_tables(snapshot.connection):
                hear(f"comparing {table}", 0, 0)
                rows, copied = (table_rows(of.connection, table) for of in (snapshot, copy))
                if any(row != copied_row for row, copied_row in zip_longest(rows, copied)):
                    raise _differs(shown, f"the table {table!r}")
        tables = application_tables(snapshot.connection)
        return StoreCopy(report.rows, report.bytes, report.rows, tables, [])
    finally:
        made.close()


def _schema(reader: SqliteReader) -> list[tuple[object, ...]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
    return reader.connection.execute(query).fetchall()


def _differs(shown: Path, difference: str) -> CorruptionError:
    return CorruptionError(
        f"the copy to {shown} differs from what was copied in {difference}, and was removed: look after "
        "the disk, and copy once more",
        what="copy",
        where=str(shown),
    )
