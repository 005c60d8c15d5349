"""Whether what is in a store's file is still what SQLite wrote there, or another file was copied over it.

A copy into the same file (`cp other.db store.db`) keeps its name and its inode. SQLite does not notice:
it goes on with the index of its write-ahead log, and mixes the pages of two files. In write-ahead
mode only checkpoints change the file. So it is looked at only when its time stamp is another one:

    what is seen                                   why SQLite never does so
    the header is not that of a store              it writes the same marks each time
    its change counter is lower than before        it only counts up
    it is larger than before and the database      a checkpoint writes pages of the database alone
    it is smaller than before and the database     the database does not shrink

A file of just the right size with a higher counter passes.
"""

from __future__ import annotations

import os

import apsw

from millstream.store.sqlite_file import APPLICATION_ID, HEADER_BYTES, PAGE_BYTES

TRIES = 3
"""How often the file is looked at before it is taken for another: its header may be written just now."""

MAGIC = b"SQLite format 3\x00"


class Contents:
    """The file as it was when it was looked at last."""

    __slots__ = ("_bytes", "_counter", "_stamp", "is_foreign")

    def __init__(self) -> None:
        self._stamp = (0, 0)
        self._bytes = self._counter = 0
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
            ((pages,),) = connection.execute("PRAGMA page_count")
        except apsw.Error:
            return True  # the transaction itself will tell
        if header[:16] != MAGIC or int.from_bytes(header[68:72], "big") != APPLICATION_ID:
            return False
        counter = int.from_bytes(header[24:28], "big")
        if counter < self._counter:
            return False
        if self._bytes and not self._may_become(size, pages * PAGE_BYTES):
            return False
        self._counter = counter
        return True

    def _may_become(self, size: int, database_bytes: int) -> bool:
        """Whether a checkpoint can have left the file with this size."""
        return min(self._bytes, database_bytes) <= size <= max(self._bytes, database_bytes)
