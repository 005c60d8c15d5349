"""The pages of a store's file, compared with the checksums in them.

SQLite's own check stops at the first page whose checksum does not fit. Here all of them are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw

from millstream.store.sqlite_file import PAGE_BYTES
from millstream.store.sqlite_pages import fits

TRIES = 3
"""A page that is being written just now is read again."""


def damaged_pages(path: Path) -> Iterator[int]:
    """The pages, numbered from 1, that are not what was written; also those that nothing uses.

    The file is read by SQLite's own means: closing it otherwise would drop the locks that this process
    has on it.
    """
    flags = [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0]
    file = apsw.VFSFile("unix", str(path), flags)
    try:
        for number in range(file.xFileSize() // PAGE_BYTES):
            if not any(fits(_read(file, number)) for _ in range(TRIES)):
                yield number + 1
    finally:
        file.xClose()


def _read(file: apsw.VFSFile, number: int) -> bytes:
    return file.xRead(PAGE_BYTES, number * PAGE_BYTES)
