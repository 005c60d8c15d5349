"""The space of an application's own tables in a store's file, counted page by page within a time limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from millstream.engine.sqlite.schema import PREFIX

STEPS_PER_LOOK = 1_000
"""Steps of SQLite's virtual machine between two questions whether to stop: about 100 pages."""


def application_bytes(connection: apsw.Connection, stop: Callable[[], bool]) -> int | None:
    """Return the bytes of all pages of the application's tables and indexes.

    None if `stop` ended the count, or this SQLite cannot count pages.
    """
    schema: list[Any] = connection.execute(
        "SELECT name, tbl_name FROM sqlite_schema WHERE rootpage > 0"
    ).fetchall()
    names = [name for name, table in schema if not str(table).startswith(PREFIX)]
    total = 0
    connection.set_progress_handler(stop, STEPS_PER_LOOK)
    try:
        for name in names:
            pages = connection.execute(
                "SELECT pgsize FROM dbstat WHERE name = ? AND aggregate = FALSE", (name,)
            )
            total += sum(size for (size,) in pages)
    except (apsw.InterruptError, apsw.SQLError):
        return None
    finally:
        connection.set_progress_handler(None)
    return total
