"""Huey with SQLite: waiting and scheduled tasks in the tables of its file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from millstream.errors import CannotOpen, InvalidInput, Overloaded
from millstream.exchange.foreign.message import PICKLE, ForeignMessage

LOCK_S = 30.0
"""How long to wait for a consumer of Huey that writes."""

_WAITING = "SELECT id, data, priority FROM task WHERE queue = ? ORDER BY priority DESC, id LIMIT ?"
_SCHEDULED = "SELECT id, data, timestamp FROM schedule WHERE queue = ? ORDER BY timestamp LIMIT ?"


class HueyFile:
    """A queue of Huey in a file. Stop the consumers of Huey before a move, since consumers run waiting tasks."""

    def __init__(self, path: str, queue: str) -> None:
        if not Path(path).exists():
            raise CannotOpen(f"there is no file {path}", path=path)
        self._path, self._queue = path, queue
        self._file = sqlite3.connect(path, timeout=LOCK_S, isolation_level=None)
        try:
            tables = {name for (name,) in self._file.execute("SELECT name FROM sqlite_master")}
        except sqlite3.DatabaseError as error:
            self._file.close()
            raise InvalidInput(f"{path} is no file of SQLite: {error}") from error
        if not {"task", "schedule"} <= tables:
            self._file.close()
            raise InvalidInput(f"{path} has no tables of Huey: it lacks task or schedule")

    def take(self, count: int) -> Sequence[ForeignMessage]:
        """Return waiting tasks, then scheduled tasks."""
        waiting = self._file.execute(_WAITING, (self._queue, count)).fetchall()
        if waiting:
            return [
                self._message(
                    "task", row, data, priority=None if not priority else _priority(priority)
                )
                for row, data, priority in waiting
            ]
        scheduled = self._file.execute(_SCHEDULED, (self._queue, count)).fetchall()
        return [
            self._message("schedule", row, data, due_ms=max(0, int(timestamp * 1_000)))
            for row, data, timestamp in scheduled
        ]

    def _message(
        self,
        table: str,
        row: int,
        data: bytes,
        *,
        priority: int | None = None,
        due_ms: int | None = None,
    ) -> ForeignMessage:
        # Huey may use the number of a row again; its data contain the unique id of the task.
        digest = blake2b(data, digest_size=16).hexdigest()
        return ForeignMessage(
            id=f"huey:{self._queue}:{digest}",
            value=bytes(data),
            headers={"content-type": PICKLE},
            priority=priority,
            due_ms=due_ms,
            receipt=(table, row),
        )

    def remove(self, messages: Sequence[ForeignMessage]) -> None:
        """Delete the rows of tasks in one transaction."""
        try:
            self._file.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise Overloaded(
                f"{self._path}: {error}: stop the consumers of Huey, and run the command again"
            ) from error
        for message in messages:
            table, row = message.receipt
            self._file.execute(f"DELETE FROM {table} WHERE id = ?", (row,))
        self._file.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _priority(priority: float) -> int:
    """Return the priority of a task within our range."""
    return min(9, max(0, int(priority)))
