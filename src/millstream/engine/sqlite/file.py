"""The file of the SQLite engine: recognised before SQLite opens it, created in one step.

A file that is no SQLite database, or a damaged store, is refused by its first page alone, before SQLite
opens it. Creation is one transaction in rollback mode. A kill in the middle leaves an empty file,
which counts as no file.

A database of an application becomes a store by one transaction that adds our tables. Tables of the
application, the `user_version` and its `application_id` stay. A store needs write-ahead mode. A
database in another mode is changed only if the caller asks for it (`adopt`), because the mode holds
for every program.

A new file has no checksums in its pages, so that every SQLite tool may write to it (`schema.py`
says how damage is noticed without them). With an option, SQLite's checksum layer adds them.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from time import sleep
from typing import Any

import apsw

from millstream.clock import Clock
from millstream.engine.sqlite.header import (
    HEADER_BYTES,
    INCREMENTAL,
    MAGIC,
    header_problem,
    page_bytes_of,
    page_count_of,
)
from millstream.engine.sqlite.pages import RESERVED_BYTES, is_layered
from millstream.engine.sqlite.schema import RECORD, create_schema, has_tables
from millstream.errors import (
    CannotOpen,
    CorruptionError,
    InvalidInput,
    MillstreamError,
)
from millstream.format.version import FORMAT

APPLICATION_ID = 0x4D494C4C
"""'MILL', where SQLite keeps a file's owner."""

PAGE_CHECKSUMS = 0x10000
"""A flag beside the format in the user version: every page has a checksum."""

PAGE_BYTES = 4096
"""Page size of a new file. Measured with 4, 8 and 16 KiB: 4 is best for single commits, and blocks
are not slower."""

FIRST_BYTES = 65_536
"""Read to recognise a file: the largest page of SQLite, and so the first page of every file."""

FILE_MODE = 0o600
"""Mode of a new store: the file holds records of users, and secrets of a server."""

_CREATION_TRIES = 200
_HEADER_TRIES = 3
_NAMED = tuple(
    "CREATE TABLE millstream_record".encode(encoding)
    for encoding in ("utf-8", "utf-16-le", "utf-16-be")
)
"""Marks of a store in the schema: a database of an application may have another encoding."""


def inspect(path: Path, *, is_adopted: bool = False) -> None:
    """Refuse a path that cannot be a store, before any byte is written.

    With `is_adopted` any SQLite database can become one.
    """
    try:
        if not path.parent.is_dir():
            raise CannotOpen(
                f"{path}: the directory {path.parent} does not exist; create it first",
                path=str(path),
            )
        if path.is_dir():
            raise CannotOpen(f"{path} is a directory; name a file in it", path=str(path))
        for place in (path, path.parent):
            if place.exists() and not os.access(place, os.R_OK | os.W_OK):
                whose = f"{path}" if place == path else f"{path}: its folder {place}"
                raise CannotOpen(
                    f"{whose} cannot be read and written by this user, which also reading needs",
                    path=str(path),
                )
    except OSError as error:
        raise CannotOpen(f"{path} cannot be reached: {error.strerror}", path=str(path)) from error
    for _ in range(_CREATION_TRIES):
        problem = _problem(path, is_adopted=is_adopted)
        if problem is None:
            return
        if not Path(f"{path}-journal").exists():
            break
        sleep(0.01)  # another process is creating the file now
    assert problem is not None
    raise problem


def _problem(path: Path, *, is_adopted: bool) -> MillstreamError | None:
    try:
        with path.open("rb") as file:
            page = file.read(FIRST_BYTES)
            if not page:
                return None
            is_foreign = is_adopted and page[:16] == MAGIC and not _is_marked(page)
            problem = None if is_foreign else refusal(path, page)
            problem = problem or _damaged_header(path, file, page)
            if problem is not None and is_foreign:
                reason = "is not a Millstream store, and no sound SQLite database either"
                return CannotOpen(f"{path} {reason}: {problem.message}", path=str(path))
            return problem
    except FileNotFoundError:
        return None
    except OSError as error:
        return CannotOpen(f"{path} cannot be read: {error.strerror}", path=str(path))


def _damaged_header(path: Path, file: BufferedReader, page: bytes) -> MillstreamError | None:
    if is_half_made(path):
        return None  # SQLite undoes an interrupted transaction
    missing = cut(path, page)
    if missing:
        return damaged(path, missing)
    for _ in range(_HEADER_TRIES):
        problem = header_problem(file, path.stat().st_size, has_log=_has(path, "-wal"))
        if problem is None:
            return None
        sleep(0.01)  # another process may be writing the header now
    assert problem is not None
    return damaged(path, problem)


def refusal(path: Path, page: bytes) -> MillstreamError | None:
    """Return why a file is no store, judged by its first page; None for a possible store."""
    if page[:16] == MAGIC and len(page) >= HEADER_BYTES:
        if _is_marked(page) or not _is_whole(page) or _has(path, "-wal"):
            return None  # the tables may be named elsewhere: the first connection looks for them
        return no_store(path)
    elif any(mark in page for mark in _NAMED):
        return damaged(path, "its header is not what was written")
    return CannotOpen(f"{path} is not a Millstream store: it is no SQLite file", path=str(path))


def no_store(path: Path) -> CannotOpen:
    """Return the error for a database without our tables."""
    return CannotOpen(
        f"{path} is an SQLite file, but not a Millstream store; `millstream adopt {path}` adds "
        "Millstream's tables to it, and leaves its own tables as they are",
        path=str(path),
    )


def _is_marked(page: bytes) -> bool:
    """True if the header or the schema in the first page names a store."""
    return int.from_bytes(page[68:72], "big") == APPLICATION_ID or any(
        mark in page for mark in _NAMED
    )


def _is_whole(page: bytes) -> bool:
    """True if the first page is a leaf, and so holds the complete schema."""
    return page[HEADER_BYTES : HEADER_BYTES + 1] == b"\x0d"


def cut(path: Path, page: bytes) -> str | None:
    """Describe missing pages at the end of a file; None if SQLite's journal or WAL may have them."""
    pages, page_bytes = page_count_of(page), page_bytes_of(page)
    if not (pages and page_bytes):
        return None  # this header has no reliable count of pages
    if is_half_made(path) or _has(path, "-wal"):
        return None  # a creation or a checkpoint was interrupted: SQLite undoes or ends it
    size = path.stat().st_size
    if size >= pages * page_bytes:
        return None
    return f"the file was cut: it ends in page {size // page_bytes + 1:,} of {pages:,}"


def is_half_made(path: Path) -> bool:
    """True if SQLite must undo writes by a rollback journal: of a creation, or of another tool.

    The header of a journal is written before the first page of the file. SQLite ignores a journal
    without a header, and leaves it there.
    """
    try:
        with Path(f"{path}-journal").open("rb") as journal:
            return journal.read(1) not in (b"", b"\0")
    except FileNotFoundError:
        return False
    except PermissionError:
        return True


def _has(path: Path, suffix: str) -> bool:
    neighbour = Path(f"{path}{suffix}")
    return neighbour.exists() and neighbour.stat().st_size > 0


def damaged(path: Path | str, damage: str) -> CorruptionError:
    """Return the error for a damaged file, with advice."""
    return CorruptionError(
        f"{path} is damaged: {damage}; `millstream doctor {path}` says what is lost and what can "
        "still be read; put back a copy of the file, or copy what can be read to a new store",
        what="file",
        where=str(path),
    )


def is_damage(error: apsw.Error) -> bool:
    """True if an error of SQLite means damaged bytes."""
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return True
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA


def reason_of(error: apsw.Error) -> str:
    """Describe the damage that an error of SQLite reports."""
    if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA:
        return "the checksum of a page does not fit"
    return f"SQLite says: {error}"


def explained(error: apsw.Error, path: Path | str) -> MillstreamError:
    """Return the error of Millstream for an error of SQLite."""
    if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA:
        return damaged(
            path,
            "the checksum of a page does not fit; if another SQLite tool has written to the file, "
            f"`millstream migrate {path}` checks every row, and converts it",
        )
    if is_damage(error):
        return damaged(path, reason_of(error))
    return CannotOpen(f"{path}: {error}", path=str(path))


def create(
    path: Path,
    *,
    busy: Callable[[int], bool],
    vfs: str | None,
    file_mode: int = FILE_MODE,
    page_checksums: bool = False,
    adopt: bool | None = None,
) -> None:
    """Create the file and its tables if they are missing; several processes may try at once.

    A database of an application must be in write-ahead mode, unless `adopt` allows to change its mode;
    with `adopt=False` it is refused.
    """
    connection = None
    try:
        _make(path, file_mode)
        connection = _open(path, busy=busy, vfs=vfs)
        # Closing must not checkpoint a WAL that a dead process left: it is checked first.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # A statement reads a single snapshot. Between two statements another process could create
        # the store, and the new tables would look like tables of an application.
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        if RECORD in names:
            return
        connection.execute("PRAGMA synchronous = FULL")
        if names:
            if adopt is False:
                raise no_store(path)
            _adopt(connection, path, page_checksums=page_checksums, changes_mode=bool(adopt))
            return
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        version = FORMAT
        if page_checksums:
            if not is_layered(connection):
                raise no_layer(path)
            connection.reserve_bytes(reserve=RESERVED_BYTES)
            version |= PAGE_CHECKSUMS
        # Free pages can be returned in steps. This comes last, because it fixes the size of pages.
        connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        with _exclusively(connection):
            if not has_tables(connection):
                create_schema(connection, page_checksums=page_checksums)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {version}")
    except (apsw.Error, OSError) as error:
        if isinstance(error, apsw.Error) and is_damage(error):
            raise explained(error, path) from error
        raise CannotOpen(
            f"{path} cannot be created: {error}; is {path.parent} writable, and the disk not full?",
            path=str(path),
        ) from error
    finally:
        if connection is not None:
            connection.close()


def _adopt(
    connection: apsw.Connection, path: Path, *, page_checksums: bool, changes_mode: bool
) -> None:
    """Add our tables to the database of an application; its journal mode is WAL, or becomes WAL."""
    if page_checksums:
        raise InvalidInput(
            f"{path} has tables already, and page_checksums=True is for a new file: leave it out"
        )
    mode = connection.pragma("journal_mode")
    if mode != "wal":
        if not changes_mode:
            raise CannotOpen(
                f"{path} is an SQLite database in journal mode {mode!r}, and a store needs 'wal'. "
                "The mode is kept in the file and holds for all programs that use it. To change it "
                f"and add Millstream's tables, open it with adopt=True, or run `millstream adopt "
                f"{path}`; nothing was changed",
                path=str(path),
                journal_mode=mode,
            )
        if _change_mode(connection) != "wal":
            raise CannotOpen(
                f"{path} is in use, so its journal mode {mode!r} cannot be changed to 'wal': close "
                "all connections to it, then try again; nothing was changed",
                path=str(path),
                journal_mode=mode,
            )
    with _exclusively(connection):
        if not has_tables(connection):
            create_schema(connection, page_checksums=False)


def _change_mode(connection: apsw.Connection) -> str:
    """Change the journal mode to WAL, and return the mode afterwards."""
    try:
        return str(connection.pragma("journal_mode", "wal"))
    except (apsw.BusyError, apsw.LockedError):
        return "busy"


@contextmanager
def _exclusively(connection: apsw.Connection) -> Iterator[None]:
    """Run a block as one transaction that no other writer shares."""
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def is_store(path: Path) -> bool:
    """Return whether a database has our tables; the file is closed again, so no engine may use it."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            return has_tables(connection)
        finally:
            connection.close()
    except apsw.Error:
        return False  # opening the store reports the error


def check_mode(file_mode: Any) -> int:
    """Return a valid mode of a store's file; the owner must be able to read and write the file."""
    if not isinstance(file_mode, int) or file_mode & ~0o666 or file_mode & 0o600 != 0o600:
        shown = oct(file_mode) if isinstance(file_mode, int) else repr(file_mode)
        raise InvalidInput(
            f"file_mode is from 0o600 (the owner alone) to 0o666 (all users), not {shown}"
        )
    return int(file_mode)


def _make(path: Path, file_mode: int) -> None:
    """Create an empty file with a mode, despite the umask; SQLite gives the WAL the same mode."""
    try:
        place = os.path.realpath(path)  # a link may lead to a missing file
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, file_mode)
    except FileExistsError:
        return
    try:
        os.fchmod(descriptor, file_mode)
    finally:
        os.close(descriptor)


def connect(
    path: Path, *, make_busy: Callable[[], Callable[[int], bool]], vfs: str | None
) -> apsw.Connection:
    """Open a connection to an existing file, in write-ahead mode; `make_busy` returns busy handlers."""
    try:
        connection = _open(path, busy=make_busy(), vfs=vfs)
    except apsw.Error as error:
        raise explained(error, path) from error
    try:
        _use_wal(connection, make_busy())
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA cache_size = -8192")
        connection.execute("PRAGMA fullfsync = 1")
        connection.execute("PRAGMA trusted_schema = 0")
        connection.execute("PRAGMA foreign_keys = 1")
    except BaseException as error:
        connection.close()
        if isinstance(error, apsw.Error):
            raise explained(error, path) from error
        raise
    return connection


def _use_wal(connection: apsw.Connection, busy: Callable[[int], bool]) -> None:
    """Change the journal mode of a new file to WAL; a file in this mode stays as it is.

    If several connections change the mode at the same time, SQLite refuses at once, without calling
    its busy handler, because each connection holds a lock that the others need. So this function
    repeats the change for as long as the busy handler allows.
    """
    for attempt in itertools.count():
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except apsw.BusyError:
            if not busy(attempt):
                raise


def close_connection(connection: apsw.Connection, *, checkpoint: bool) -> None:
    """Close a connection; with `checkpoint`, the last connection copies the WAL into the file."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0 if checkpoint else 1)
    connection.close()


def patience(clock: Clock, timeout_s: float) -> Callable[[int], bool]:
    """Return a busy handler that waits in short random steps until a timeout.

    The lock is free again within a commit or a fold slice.
    """
    deadline = 0.0

    def wait(attempt: int) -> bool:
        nonlocal deadline
        if attempt == 0:
            deadline = clock.seconds() + timeout_s
        if clock.seconds() > deadline:
            return False
        sleep(random.uniform(0.0001, 0.0005) * min(attempt + 1, 10))
        return True

    return wait


def no_layer(path: Path) -> CannotOpen:
    """Return the error for a file with page checksums and an apsw without the checksum layer."""
    return CannotOpen(
        f"{path}: pages with checksums are wanted, and this apsw ({apsw.apsw_version()}) came without "
        "SQLite's checksum layer, so it would spoil them: install a wheel of apsw 3.51 or newer "
        f"(`pip install -U apsw`), or have them go by `millstream migrate {path}`",
        path=str(path),
    )


def _open(path: Path, *, busy: Callable[[int], bool], vfs: str | None) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    connection.set_busy_handler(busy)
    return connection
