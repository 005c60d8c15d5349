"""Every page of a SQLite file is read once, so that damage is found where no query has looked yet."""

from __future__ import annotations

from collections.abc import Callable

import apsw

from millstream.engine.sqlite.open_checks import check_rows
from millstream.errors import CorruptionError

STEPS_PER_LOOK = 10_000
"""Of SQLite's machine, between two looks whether to stop."""


def check_pages(connection: apsw.Connection, stop: Callable[[], bool], *, place: str) -> bool:
    """Read all tables and indexes, the application's own too; False if it was stopped.

    A page whose checksum does not fit is an error of SQLite; what else is wrong with the trees, and
    a row whose checksum does not fit, raises `CorruptionError`.
    """
    connection.set_progress_handler(stop, STEPS_PER_LOOK)
    try:
        found = connection.execute("PRAGMA integrity_check(1)").fetchall()
        check_rows(connection)
    except apsw.InterruptError:
        return False
    finally:
        connection.set_progress_handler(None)
    if found != [("ok",)]:
        raise CorruptionError(f"{place} is damaged: {found[0][0]}", what="file", where=place)
    return True
