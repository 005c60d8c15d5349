"""Whether what is in a store's file is still what SQLite wrote there, or another file was copied over it.

A copy into the same file (`cp other.db store.db`) keeps its name and its inode. SQLite does not notice:
it goes on with the index of its write-ahead log, and mixes the pages of two files. In write-ahead
mode only checkpoints change the file. So it is looked at only when its time stamp is another one:

    what is seen                                   why SQLite never does so
    the header is not that of an SQLite file       it writes the same marks each time
    its change counter is lower than before        it only counts up
    it is larger than before and the database      a checkpoint writes pages of the database alone
    it is smaller than before and the database     the database does not shrink

The database does shrink where another tool runs `VACUUM`, which counts the version of the schema up, or
has set `auto_vacuum`. The size is not compared then. A file of just the right size with a higher
counter passes.
"""

from __future__ import annotations

import os

import apsw

from millstream.engine.sqlite.header import HEADER_BYTES, MAGIC

TRIES = 3
"""How often the file is looked at before it is taken for another: its header may be written just now."""


class Contents:
    """The file as it was when it was looked at last."""

    __slots__ = ("_bytes", "_counter", "_schema", "_stamp", "is_foreign")

    def __init__(self) -> None:
        self._stamp = (0, 0)
        self._bytes = self._counter = self._schema = 0
        self.is_foreign = False
        """Whether another file was found to have been copied over it: that stays so."""

    def check(self, found: os.stat_result, connection: apsw.Connection) -> bool:
        """Whether the file, as `stat` has just shown it, is what SQLite has written."""
        stamp = found.st_mtime_ns, found.st_size
        if stamp != self._stamp and not self.is_foreign:
            if any(self._fits(found.st_size, connection) for _ in range(TRIES)):
                self._stamp, self._bytes = stamp, found.st_size
            else:
                self.is_foreign = True
        return not self.is_foreign

    def _fits(self, size: int, connection: apsw.Connection) -> bool:
        try:
            _, header = connection.read("main", 0, 0, HEADER_BYTES)
            pages, page_bytes, schema, shrinks = (
                connection.pragma(name)
                for name in ("page_count", "page_size", "schema_version", "auto_vacuum")
            )
        except apsw.Error:
            return True  # the transaction itself will tell
        counter = int.from_bytes(header[24:28], "big")
        if header[:16] != MAGIC or counter < self._counter:
            return False
        may_shrink = shrinks or schema > self._schema
        if self._bytes and not may_shrink and not self._may_become(size, pages * page_bytes):
            return False
        self._counter, self._schema = counter, schema
        return True

    def _may_become(self, size: int, database_bytes: int) -> bool:
        """Whether a checkpoint can have left the file with this size."""
        return min(self._bytes, database_bytes) <= size <= max(self._bytes, database_bytes)
