"""A whole SQLite file, copied beside running commits, or exchanged for another."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import apsw

from millstream.engine.sqlite.file import FILE_MODE
from millstream.engine.sqlite.pages import RESERVED_BYTES, is_verified

COPY_PAGES = 4096
"""Pages that are copied at a time, 16 MiB."""


PagesCopied = Callable[[int, int], None]
"""Told how many pages are copied, and of how many."""


def copy_file(
    source: apsw.Connection, path: Path, *, vfs: str | None, heard: PagesCopied | None = None
) -> None:
    """Copy everything that a connection sees into a new or empty file, and sync it.

    The connection has a transaction open, so that all pages are of one moment.
    """
    if path.exists() and path.stat().st_size:
        raise FileExistsError(f"{path} is not empty")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, FILE_MODE))
    if is_verified(source):
        _begin(path, vfs)
    target = apsw.Connection(str(path), vfs=vfs)
    try:
        target.execute(
            "SELECT * FROM sqlite_schema"
        )  # the layer sees by it that pages have checksums
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
    """Make a file whose pages have checksums.

    The checksum layer learns from the first page whether a file has them, and a copy of more pages
    than SQLite's cache holds is written to the file before its first page is.
    """
    target = apsw.Connection(str(path), vfs=vfs)
    try:
        target.reserve_bytes(reserve=RESERVED_BYTES)
        target.execute("PRAGMA user_version = 1")
    finally:
        target.close()


def exchange_file(path: Path, new: Path, *, aside: Path) -> None:
    """Move a file and its write-ahead log aside, and another one to its place; nobody has it open."""
    move_aside(path, aside)
    os.rename(new, path)


def move_aside(path: Path, aside: Path) -> None:
    """Move a file and its write-ahead log to another name; nobody has it open."""
    for ending in (
        "-wal",
        "",
    ):  # the log first: without it, the rest is refused as damaged or older
        with suppress(FileNotFoundError):
            os.rename(f"{path}{ending}", f"{aside}{ending}")
    with suppress(FileNotFoundError):
        os.unlink(f"{path}-shm")
