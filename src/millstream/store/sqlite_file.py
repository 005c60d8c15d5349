"""The file of the SQLite engine: recognised before it is touched, created in one step.

A file that is not ours, or that a newer version wrote, is refused by its header alone; SQLite does
not open it. Creation is one transaction in rollback mode, so a kill in the middle leaves an empty
file, which is as good as none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import sleep

import apsw

from millstream.errors import CannotOpen

PREFIX = "millstream_"
APPLICATION_ID = 0x4D494C4C
"""'MILL', where SQLite keeps a file's owner."""

FORMAT = 1
"""The version of the bytes on disk; a file with a higher one is left alone."""

PAGE_BYTES = 4096
"""Measured: of 4, 8 and 16 KiB the best for single commits and no worse for blocks."""

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
                raise CannotOpen(
                    f"{path}: {place} cannot be read and written by this user", path=str(path)
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
    raise CannotOpen(f"{path} {problem}", path=str(path))


def _problem(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not header:
        return None
    if header[:16] != _MAGIC or len(header) < 100:
        return "is not a Millstream store: it is no SQLite file"
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        return "is an SQLite file, but not a Millstream store"
    version = int.from_bytes(header[60:64], "big")
    return _newer(version) if version > FORMAT else None


def _newer(version: int) -> str:
    return (
        f"has format {version}, and this Millstream knows formats up to {FORMAT}; "
        "upgrade Millstream to open it"
    )


def create(path: Path, *, busy: Callable[[int], bool], vfs: str | None) -> None:
    """Make the tables if they are missing; several processes may try at once."""
    try:
        connection = _open(path, busy=busy, vfs=vfs)
    except apsw.Error as error:
        raise CannotOpen(f"{path}: {error}", path=str(path)) from error
    try:
        if _is_ours(connection):
            version = int(connection.pragma("user_version"))
            if version > FORMAT:
                raise CannotOpen(f"{path} {_newer(version)}", path=str(path))
            return
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN EXCLUSIVE")
        if not _is_ours(connection):
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
        _sync_directory(path.parent)
    except apsw.Error as error:
        raise CannotOpen(
            f"{path} cannot be created: {error}; is {path.parent} writable, and the disk not full?",
            path=str(path),
        ) from error
    finally:
        connection.close()


def connect(path: Path, *, busy: Callable[[int], bool], vfs: str | None) -> apsw.Connection:
    """A connection to a file that exists, in write-ahead mode."""
    try:
        connection = _open(path, busy=busy, vfs=vfs, create=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA cache_size = -8192")
        connection.execute("PRAGMA fullfsync = 1")
        connection.execute("PRAGMA trusted_schema = 0")
        connection.execute("PRAGMA foreign_keys = 1")
    except apsw.Error as error:
        raise CannotOpen(f"{path}: {error}", path=str(path)) from error
    return connection


def _open(
    path: Path, *, busy: Callable[[int], bool], vfs: str | None, create: bool = True
) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
    connection.set_busy_handler(busy)
    return connection


def _is_ours(connection: apsw.Connection) -> bool:
    found = connection.execute("PRAGMA application_id").fetchone()
    return found is not None and found[0] == APPLICATION_ID


def _sync_directory(directory: Path) -> None:
    """Make the new file's name durable, where directories can be synced."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
