"""Copies of a SQLite file beside running commits, and the exchange of a file for another."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import apsw

from millstream.engine.sqlite.file import FILE_MODE
from millstream.engine.sqlite.pages import RESERVED_BYTES, is_verified

COPY_PAGES = 4096
"""Pages of one step of a copy, 16 MiB."""


PagesCopied = Callable[[int, int], None]
"""Receives progress: pages copied, and pages in total."""


def copy_file(
    source: apsw.Connection, path: Path, *, vfs: str | None, heard: PagesCopied | None = None
) -> None:
    """Copy the snapshot of a connection into a new or empty file, and sync the file.

    The connection has an open transaction, so all pages belong to one snapshot.
    """
    if path.exists() and path.stat().st_size:
        raise FileExistsError(f"{path} is not empty")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, FILE_MODE))
    if is_verified(source):
        _begin(path, vfs)
    target = apsw.Connection(str(path), vfs=vfs)
    try:
        # A first read shows the checksum layer that pages have checksums.
        target.execute("SELECT * FROM sqlite_schema")
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(COPY_PAGES)
                if heard is not None:
                    heard(backup.page_count - backup.remaining, backup.page_count)
        target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        target.close()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _begin(path: Path, vfs: str | None) -> None:
    """Create a file whose pages have checksums.

    The checksum layer reads from the first page whether a file has checksums. A copy with more pages
    than SQLite's cache writes later pages before the first page, so the first page is written here.
    """
    target = apsw.Connection(str(path), vfs=vfs)
    try:
        target.reserve_bytes(reserve=RESERVED_BYTES)
        target.execute("PRAGMA user_version = 1")
    finally:
        target.close()


def exchange_file(path: Path, new: Path, *, aside: Path) -> None:
    """Move a file and its write-ahead log aside, and a new file into its place; no process has it open."""
    move_aside(path, aside)
    os.rename(new, path)


def move_aside(path: Path, aside: Path) -> None:
    """Rename a file and its write-ahead log; no process has the file open.

    The log goes first: after a crash in between, the file alone is older, or refused as damaged.
    """
    for ending in ("-wal", ""):
        with suppress(FileNotFoundError):
            os.rename(f"{path}{ending}", f"{aside}{ending}")
    with suppress(FileNotFoundError):
        os.unlink(f"{path}-shm")
