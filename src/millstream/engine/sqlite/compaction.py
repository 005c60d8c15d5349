"""Compaction: returns the free pages of a store's file to the disk, in small steps beside writers.

SQLite keeps the pages of deleted rows for later rows, and the file never shrinks by itself. In a file
with `auto_vacuum = INCREMENTAL`, `PRAGMA incremental_vacuum` moves pages from the end of the file into
free pages, and cuts the file. Each step here is one synced commit of a few dozen pages, in about half
a millisecond. A kill at any time leaves a complete file: the steps are ordinary commits. The next
checkpoint of the write-ahead log cuts the file.

New files have `auto_vacuum = INCREMENTAL`. Only `VACUUM` sets it in an existing file: `rewrite` does
both, and writers wait meanwhile. The background leaves a database of an application alone: its owner
may run steps with `millstream compact`.

A step counts `shrunk` up in the row of the file. So other handles know why the file is smaller
(`identity.py`), and see that another process compacts already.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from time import sleep
from typing import Any, Literal, NamedTuple

import apsw

from millstream.clock import Clock
from millstream.engine.disk import full
from millstream.engine.sqlite.checks import complete, needs_application
from millstream.engine.sqlite.failures import failed_task
from millstream.engine.sqlite.file import APPLICATION_ID, patience
from millstream.engine.sqlite.header import INCREMENTAL, NONE
from millstream.engine.sqlite.options import SqliteOptions
from millstream.engine.sqlite.pages import is_verified
from millstream.engine.sqlite.schema import note_shrunk, shrunk_of
from millstream.errors import InvalidInput

STEP_S = 0.0005
"""The aimed duration of a step: a writer waits about as long as for another commit."""

FACTOR_MAX = 2
"""How much the number of pages changes from one step to the next, at most."""

PAGES_MIN, PAGES_FIRST, PAGES_MAX = 4, 16, 128
"""Pages of a step; the number follows the duration of the steps before."""

TURN_S = 1.0
"""The period of the background, of which steps take a share."""

STEPS_MAX = 200
"""The most steps of a turn, also if the clock stands still."""

LOOK_S = 10.0
"""Age of a handle before its background looks for free pages, and the period of its looks."""

FREE_SHARE = 4
"""The background begins when more than this part of the file, a quarter, is free."""

SHARE_MAX = 0.5

CompactionState = Literal["off", "resting", "running", "elsewhere"]
"""`resting`: too few pages are free; `elsewhere`: another process compacts."""


class FileUse(NamedTuple):
    """The pages of a file, as a snapshot sees them."""

    page_bytes: int
    pages: int
    free_pages: int
    mode: int
    """The value of `auto_vacuum`."""
    is_own: bool
    """True for a file that Millstream has made, False for a database of an application."""

    @property
    def file_bytes(self) -> int:
        """Bytes of all pages."""
        return self.pages * self.page_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes of free pages."""
        return self.free_pages * self.page_bytes

    @property
    def live_bytes(self) -> int:
        """Bytes of pages in use."""
        return self.file_bytes - self.free_bytes


def file_use(connection: apsw.Connection) -> FileUse:
    """Count the pages of a file."""
    names = ("page_size", "page_count", "freelist_count", "auto_vacuum", "application_id")
    page_bytes, pages, free_pages, mode, owner = (connection.pragma(name) for name in names)
    return FileUse(page_bytes, pages, free_pages, mode, owner == APPLICATION_ID)


def return_pages(connection: apsw.Connection, pages: int) -> tuple[int, int]:
    """Return up to `pages` free pages to the disk, and commit the transaction of the caller.

    Returns the number of returned pages, and the count of steps in the file's row.
    """
    try:
        before = connection.pragma("freelist_count")
        connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
        returned = before - connection.pragma("freelist_count")
        if not returned:
            return 0, 0
        shrunk = note_shrunk(connection)
        connection.execute("COMMIT")
        return returned, shrunk
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class Compaction:
    """The steps of one handle. `turn` belongs to the keeper's thread, and `step` to a command."""

    def __init__(
        self,
        path: Path,
        options: SqliteOptions,
        clock: Clock,
        use: Callable[[], FileUse],
        connected: Callable[[], AbstractContextManager[apsw.Connection]],
    ) -> None:
        """`connected` gives a connection for steps."""
        self.share = check_share(options.compact_share)
        self._kept_bytes = options.free_bytes_kept
        self._busy_timeout_ms = options.busy_timeout_ms
        self._clock = clock
        self._path, self._use, self._connected = path, use, connected
        self._pages = PAGES_FIRST
        self._due_s = clock.seconds() + LOOK_S
        self._shrunk: int | None = None
        """The count of steps in the file's row, as of the last step or look."""
        self.step_s = 0.0
        """The duration of the last step, without its wait for other writers."""
        self.returned_pages = 0
        self.state: CompactionState = "resting" if self.share else "off"

    def turn(self, alone: AbstractContextManager[object]) -> int:
        """Return pages for a share of a second if many are free, and return their number.

        `alone` keeps the other writers of this process out of a step.
        """
        began_s = self._clock.seconds()
        if not self.share or began_s < self._due_s:
            return 0
        self._due_s = began_s + LOOK_S
        use = self._use()
        if not self._is_due(use):
            self.state = "resting"
            return 0
        if self._is_elsewhere():
            self.state = "elsewhere"
            self._due_s = began_s + LOOK_S * random.uniform(1, 2)
            return 0
        self.state = "running"
        self._due_s = began_s + TURN_S
        return self._run(use.free_bytes - self._kept_bytes, use.page_bytes, alone)

    def _run(
        self, excess_bytes: int, page_bytes: int, alone: AbstractContextManager[object]
    ) -> int:
        """Take steps for a share of a second; each is followed by a pause as long as the step."""
        spent_s, total = 0.0, 0
        for _ in range(STEPS_MAX):
            if spent_s >= self.share * TURN_S or total * page_bytes >= excess_bytes:
                break
            with alone:
                began_s = self._clock.seconds()
                returned = self.step()
            if not returned:
                break
            total += returned
            took_s = self._clock.seconds() - began_s
            spent_s += took_s
            sleep(took_s)
        if total * page_bytes >= excess_bytes:
            self.state = "resting"
        return total

    def step(self, *, waits: bool = False) -> int | None:
        """Return some pages to the disk by one commit; None while another process writes."""
        with self._connected() as connection:
            connection.set_busy_timeout(0)
            if waits:
                connection.set_busy_handler(patience(self._clock, self._busy_timeout_ms / 1000))
            try:
                connection.execute("BEGIN IMMEDIATE")
                began_s = self._clock.seconds()  # without the wait for other writers
                returned, shrunk = return_pages(connection, self._pages)
            except apsw.BusyError:
                return None
            except apsw.Error as error:
                raise failed_task("compaction", error, self._path) from error
            self.step_s = took_s = self._clock.seconds() - began_s
        if returned:
            self.returned_pages += returned
            self._shrunk = shrunk
        factor = min(FACTOR_MAX, max(1 / FACTOR_MAX, STEP_S / max(took_s, STEP_S / FACTOR_MAX)))
        self._pages = int(min(PAGES_MAX, max(PAGES_MIN, self._pages * factor)))
        return returned

    def rewrite(self) -> None:
        """Rewrite the complete file without free pages by `VACUUM`; writers wait meanwhile.

        A file that Millstream has made can return its pages in steps afterwards. A database of an
        application keeps its mode.
        """
        use = self._use()
        check_space(os.path.realpath(self._path), use.live_bytes)
        with self._connected() as connection:
            connection.set_busy_timeout(self._busy_timeout_ms)
            try:
                if use.is_own and use.mode == NONE:
                    connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
                connection.execute("VACUUM")
                # A kill here leaves moved root pages: the next opening checks all rows and notes them.
                connection.execute("BEGIN IMMEDIATE")
                complete(connection, page_checksums=is_verified(connection))
                connection.execute("COMMIT")
            except apsw.FullError as error:
                raise full(os.path.dirname(os.path.realpath(self._path)), str(error)) from error
            except apsw.Error as error:
                if needs_application(error):
                    raise InvalidInput(
                        f"{self._path} has an index or a constraint that only the application can "
                        f"compute ({error}): let the application run VACUUM; nothing was changed"
                    ) from error
                raise failed_task("compaction", error, self._path) from error
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _is_due(self, use: FileUse) -> bool:
        if use.mode != INCREMENTAL or not use.is_own:
            return False
        if self.state == "running":
            return use.free_bytes > self._kept_bytes
        return use.free_bytes > 2 * self._kept_bytes and use.free_pages * FREE_SHARE > use.pages

    def _is_elsewhere(self) -> bool:
        """True if another process has taken a step since the last look of this handle."""
        with self._connected() as connection:
            shrunk, before = shrunk_of(connection), self._shrunk
        self._shrunk = shrunk
        return before is not None and shrunk != before


def check_space(place: str, live_bytes: int) -> None:
    """Raise `DiskFull` if the disk of a file, or of temporary files, cannot hold a rewritten file."""
    folder, temporary = os.path.dirname(place), _temporary_folder()
    needed = {folder: 2 * live_bytes}
    needed[temporary] = needed.get(temporary, 0) + live_bytes
    for where, needed_bytes in needed.items():
        free_bytes = shutil.disk_usage(where).free
        if free_bytes < needed_bytes:
            raise full(where, f"rewriting the file needs {needed_bytes:,} bytes")


def _temporary_folder() -> str:
    """Return the folder in which SQLite writes temporary files."""
    named = (os.environ.get(name, "") for name in ("SQLITE_TMPDIR", "TMPDIR"))
    folders = (*named, "/var/tmp", "/usr/tmp", "/tmp")
    return next((folder for folder in folders if folder and os.path.isdir(folder)), ".")


def check_share(share: Any) -> float:
    """Return a valid share of time for the background."""
    if not isinstance(share, int | float) or not 0 <= share <= SHARE_MAX:
        raise InvalidInput(
            f"compact_share is a share of time from 0 (off) to {SHARE_MAX:g}, such as 0.05, not "
            f"{share!r}"
        )
    return float(share)
