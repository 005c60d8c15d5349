"""Finding a room by its name: the log, and the state besides the log."""

from __future__ import annotations

from typing import NamedTuple

from millstream.format import room_keys
from millstream.log.model.head import Head
from millstream.log.rules.operations import find_log, make_log
from millstream.rooms.names import log_of
from millstream.rooms.settings import DEFAULTS, RoomSettings
from millstream.rooms.state import RoomState
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View


class FoundRoom(NamedTuple):
    """A room as an operation or a read sees it."""

    log_id: int
    head: Head
    state: RoomState

    @property
    def key(self) -> bytes:
        """Return the key of the state besides the log."""
        return room_keys.room(self.log_id)

    @property
    def settings(self) -> RoomSettings:
        """Return the effective settings."""
        return self.state.settings or DEFAULTS


def find_room(view: WriteTransaction | View, name: str) -> FoundRoom | None:
    """Return the room of a name; a room exists if its log exists."""
    log = find_log(view, log_of(name))
    return None if log is None else _room(view, *log)


def make_room(tx: WriteTransaction, name: str) -> FoundRoom:
    """Return the room of a name; create a missing room."""
    return _room(tx, *make_log(tx, log_of(name)))


def _room(view: WriteTransaction | View, log_id: int, head: Head) -> FoundRoom:
    return FoundRoom(log_id, head, view.entity(room_keys.room(log_id), RoomState))
