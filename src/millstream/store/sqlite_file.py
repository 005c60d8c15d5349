"""The file of the SQLite engine: recognised before it is touched, created in one step.

A file that is not ours, or that a newer version wrote, is refused by its header alone; SQLite does
not open it. Creation is one transaction in rollback mode, so a kill in the middle leaves an empty
file, which is as good as none.

Where SQLite's checksum layer is there, a new file gets a checksum in each page. Two places of the
header say so, the reserved bytes and the user version: damage to one of them cannot switch it off.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import apsw

from millstream.clock import Clock
from millstream.errors import CannotOpen, CorruptionError, InvalidInput, MillstreamError
from millstream.store.sqlite_pages import RESERVED_BYTES, fits, is_layered, is_verified

PREFIX = "millstream_"
APPLICATION_ID = 0x4D494C4C
"""'MILL', where SQLite keeps a file's owner."""

FORMAT = 1
"""The version of the bytes on disk; a file with a higher one is left alone."""

PAGE_CHECKSUMS = 0x10000
"""Beside the format in the user version: every page has a checksum."""

PAGE_BYTES = 4096
"""Measured: of 4, 8 and 16 KiB the best for single commits and no worse for blocks."""

HEADER_BYTES = 100

FILE_MODE = 0o600
"""Of a new store: it holds what it was given, and the secrets of its server."""

_MAGIC = b"SQLite format 3\x00"
_CREATION_TRIES = 200

_SCHEMA = f"""
CREATE TABLE {PREFIX}record (key BLOB NOT NULL PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE {PREFIX}payload (id INTEGER PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE {PREFIX}block (id INTEGER PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE {PREFIX}delta (id INTEGER PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL);
"""


def inspect(path: Path) -> None:
    """Refuse a path that cannot be a store, before anything is written."""
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
        problem = _problem(path)
        if problem is None:
            return
        if not Path(f"{path}-journal").exists():
            break
        sleep(0.01)  # another process is creating it just now
    assert problem is not None
    raise problem


def _problem(path: Path) -> MillstreamError | None:
    try:
        with path.open("rb") as file:
            page = file.read(PAGE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        return CannotOpen(f"{path} cannot be read: {error.strerror}", path=str(path))
    if not page:
        return None
    problem = refusal(path, page)
    if problem is None and (missing := cut(path, page)):
        return damaged(path, missing)
    return problem


def refusal(path: Path, page: bytes) -> MillstreamError | None:
    """Why a file is no store that can be opened, by its first page; None if it is one."""
    strange = _stranger(page)
    if strange is None:
        return None
    if _is_damaged_header(page):
        return damaged(path, "its header is not what was written")
    return CannotOpen(f"{path} {strange}", path=str(path))


def _stranger(page: bytes) -> str | None:
    if page[:16] != _MAGIC or len(page) < HEADER_BYTES:
        return "is not a Millstream store: it is no SQLite file"
    if int.from_bytes(page[68:72], "big") != APPLICATION_ID:
        return "is an SQLite file, but not a Millstream store"
    version = int.from_bytes(page[60:64], "big")
    if format_of(version) > FORMAT:
        return newer(version)
    if format_of(version) < 1:
        return "says that it has format 0, which never was"
    if bool(version & PAGE_CHECKSUMS) != (page[20] == RESERVED_BYTES):
        return "says in two places whether its pages have checksums, and they differ"
    return None


def _is_damaged_header(page: bytes) -> bool:
    """Whether a first page that is not right was once that of a store.

    A file of a newer version is whole: its checksum fits.
    """
    if b"CREATE TABLE millstream_record" not in page:
        return False
    checksummed = page[20] == RESERVED_BYTES or page[61] & 1
    return not (checksummed and fits(page))


def cut(path: Path, page: bytes) -> str | None:
    """How much is missing at the end of a file; None if nothing, or if SQLite's files have the rest."""
    pages = int.from_bytes(page[28:32], "big")
    if page[24:28] != page[92:96]:
        return None  # the count of pages is not kept up to date
    if is_half_made(path) or _has(path, "-wal"):
        return None  # a creation or a checkpoint was interrupted: SQLite undoes or ends it
    there = path.stat().st_size
    if there >= pages * PAGE_BYTES:
        return None
    return f"the file was cut: it ends in page {there // PAGE_BYTES + 1:,} of {pages:,}"


def is_half_made(path: Path) -> bool:
    """Whether a creation was interrupted, or goes on: only then has a store a rollback journal."""
    return _has(path, "-journal")


def _has(path: Path, suffix: str) -> bool:
    other = Path(f"{path}{suffix}")
    return other.exists() and other.stat().st_size > 0


def format_of(version: int) -> int:
    """The format in a user version; one with flags that nobody knows counts as newer."""
    return version & ~PAGE_CHECKSUMS


def newer(version: int) -> str:
    """What is said of a file of a later version."""
    return (
        f"has format {format_of(version)}, and this Millstream knows formats up to {FORMAT}; "
        "upgrade Millstream to open it"
    )


def damaged(path: Path | str, found: str) -> CorruptionError:
    """What is said of a file that is not what was written: what was found, and what to do."""
    return CorruptionError(
        f"{path} is damaged: {found}; `millstream doctor {path}` says what is lost and what can "
        "still be read; put back a copy of the file, or copy what can be read to a new store",
        what="file",
        where=str(path),
    )


def is_damage(error: apsw.Error) -> bool:
    """Whether SQLite has found bytes that are not what was written."""
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return True
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA


def explained(error: apsw.Error, path: Path | str) -> MillstreamError:
    """What an error of SQLite means to the caller."""
    if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA:
        return damaged(path, "the checksum of a page does not fit")
    if is_damage(error):
        return damaged(path, f"SQLite says: {error}")
    return CannotOpen(f"{path}: {error}", path=str(path))


def create(
    path: Path, *, busy: Callable[[int], bool], vfs: str | None, file_mode: int = FILE_MODE
) -> None:
    """Make the file and its tables if they are missing; several processes may try at once."""
    connection = None
    try:
        _make(path, file_mode)
        connection = _open(path, busy=busy, vfs=vfs)
        # A log that was left must not vanish before it was looked at.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if _is_ours(connection):
            return
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA synchronous = FULL")
        version = FORMAT
        if is_layered(connection):
            connection.reserve_bytes(reserve=RESERVED_BYTES)
            version |= PAGE_CHECKSUMS
        connection.execute("BEGIN EXCLUSIVE")
        if not _is_ours(connection):
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
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


def check_mode(file_mode: Any) -> int:
    """A mode that a store's file may have: its owner must read and write it."""
    if not isinstance(file_mode, int) or file_mode & ~0o666 or file_mode & 0o600 != 0o600:
        shown = oct(file_mode) if isinstance(file_mode, int) else repr(file_mode)
        raise InvalidInput(
            f"file_mode is from 0o600 (the owner alone) to 0o666 (all users), not {shown}"
        )
    return int(file_mode)


def _make(path: Path, file_mode: int) -> None:
    """An empty file with this mode, whatever the umask; SQLite gives its neighbours the same."""
    try:
        place = os.path.realpath(path)  # a link may lead to a file that is not there yet
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, file_mode)
    except FileExistsError:
        return
    try:
        os.fchmod(descriptor, file_mode)
    finally:
        os.close(descriptor)


def connect(
    path: Path, *, busy: Callable[[int], bool], vfs: str | None, read_only: bool = False
) -> apsw.Connection:
    """A connection to a file that exists, in write-ahead mode."""
    try:
        connection = _open(path, busy=busy, vfs=vfs)
    except apsw.Error as error:
        raise explained(error, path) from error
    try:
        _check_version(connection, path, read_only=read_only)
        connection.execute("PRAGMA journal_mode = WAL")
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


def close_connection(connection: apsw.Connection, *, checkpoint: bool) -> None:
    """Close a connection; the last one of all copies the log into the file, if it is to."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0 if checkpoint else 1)
    connection.close()


def patience(clock: Clock, timeout_s: float) -> Callable[[int], bool]:
    """Wait in short, uneven steps: the lock is free again within a commit or a fold slice."""
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


def _check_version(connection: apsw.Connection, path: Path, *, read_only: bool) -> None:
    """Refuse what a newer version wrote, and pages whose checksums would not be kept."""
    version = int(connection.pragma("user_version"))
    if format_of(version) > FORMAT:
        raise CannotOpen(f"{path} {newer(version)}", path=str(path))
    checksummed = bool(version & PAGE_CHECKSUMS)
    if checksummed and not is_layered(connection):
        if not read_only:
            raise CannotOpen(
                f"{path} has checksums in its pages, and this apsw ({apsw.apsw_version()}) came "
                "without SQLite's checksum layer, so it would spoil them: install a wheel of apsw "
                "3.51 or newer (`pip install -U apsw`)",
                path=str(path),
            )
    elif checksummed != is_verified(connection):
        raise damaged(path, "its header is not what was written")


def _open(path: Path, *, busy: Callable[[int], bool], vfs: str | None) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    connection.set_busy_handler(busy)
    return connection


def _is_ours(connection: apsw.Connection) -> bool:
    found = connection.execute("PRAGMA application_id").fetchone()
    return found is not None and found[0] == APPLICATION_ID


def sync_folder(path: Path) -> None:
    """Make the names of a file and of its write-ahead log durable, where folders can be synced.

    SQLite does so when it first syncs a new log, and says nothing if that fails.
    """
    if os.name != "posix":
        return
    folder = os.path.dirname(os.path.realpath(path))
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTSUP):
            return  # this file system cannot sync folders
        raise CannotOpen(
            f"{path}: its folder {folder} could not be synced ({error.strerror or error}), so a "
            "power cut could make the file vanish; nothing was written. Look after the disk, and "
            "open the store again: the sync is then repeated",
            path=str(path),
        ) from error
