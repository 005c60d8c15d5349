"""The write-ahead log that a dead process has left: whether it cuts acknowledged commits off.

Another process may be writing to the same log. What is half written there is no damage, so a break
counts only if it is still there while nobody has the turn to write.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw

from millstream.engine.sqlite.file import close_connection
from millstream.engine.sqlite.wal import Break, find_break


def break_in_log(
    path: Path, connection: apsw.Connection, is_written: Callable[[], bool] = lambda: False
) -> Break | None:
    """Where the log of a file cuts off acknowledged commits; SQLite has looked at its first part.

    `is_written` says whether a living process has the turn to write.
    """
    noop = getattr(apsw, "SQLITE_CHECKPOINT_NOOP", None)

    def count_known() -> int:
        return 0 if noop is None else max(0, connection.wal_checkpoint(mode=noop)[0])

    return find_break(Path(f"{path}-wal"), count_known, is_written)


def break_beside_writers(
    path: Path, connection: apsw.Connection, connect: Callable[[], apsw.Connection]
) -> Break | None:
    """As `break_in_log`, while other processes may write; `connect` makes further connections."""
    if break_in_log(path, connection, lambda: _is_written(connect())) is None:
        return None
    other = connect()
    try:
        other.execute("BEGIN IMMEDIATE")  # another process may have been writing just now
        return break_in_log(path, connection)
    finally:
        close_connection(other, checkpoint=False)


def _is_written(other: apsw.Connection) -> bool:
    """Whether a process has the turn to write: that ends with the process."""
    try:
        other.set_busy_handler(None)
        other.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return True
    finally:
        close_connection(other, checkpoint=False)
    return False
