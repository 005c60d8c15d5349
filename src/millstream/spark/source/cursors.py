"""Cursors that follow a stream or an archive: a cursor of the same name on each log.

A follower moves only the floor of a cursor and acknowledges no ranges above the floor. One commit
moves the cursors of up to 500 logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from millstream.command import Transact
from millstream.log import commands as c
from millstream.spark.source.positions import Position

if TYPE_CHECKING:
    from millstream.command import Session

SECTION = 1
STEPS_PER_COMMIT = 500


class StreamCursors:
    """The cursors of one name; without a name it does nothing."""

    def __init__(self, cursor: str) -> None:
        self._cursor = cursor
        self._floors: Position = {}

    def make(self, session: Session, positions: Position) -> None:
        """Create the missing cursors, so that retention keeps the records behind their floors."""
        new = {name: at for name, at in positions.items() if name not in self._floors}
        if not self._cursor or not new:
            return
        cursor = self._cursor
        _commit(
            session,
            (c.OpenCursor(name, cursor, at, SECTION, durable=True) for name, at in new.items()),
        )
        self._floors |= dict.fromkeys(new, -1)

    def forget(self, names: Iterable[str]) -> None:
        """Drop deleted logs; the store deleted their cursors already."""
        for name in names:
            self._floors.pop(name, None)

    def move(self, session: Session, positions: Position) -> None:
        """Move the cursors forward to the positions that are processed."""
        moved = {name: at for name, at in positions.items() if self._floors.get(name) != at}
        if not self._cursor or not moved:
            return
        self.make(session, moved)
        cursor = self._cursor
        _commit(session, (c.MoveCursor(name, cursor, at, True) for name, at in moved.items()))
        self._floors |= moved


def _commit(session: Session, steps: Iterable[c.OpenCursor | c.MoveCursor]) -> None:
    waiting = iter(steps)
    while batch := list(islice(waiting, STEPS_PER_COMMIT)):
        session.execute(Transact(list(batch)))
