"""Rooms by their names: the log that a name leads to, and what is kept beside it."""

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
    """One room as one operation or question sees it."""

    log_id: int
    head: Head
    state: RoomState

    @property
    def key(self) -> bytes:
        """The key of what is kept beside the log."""
        return room_keys.room(self.log_id)

    @property
    def settings(self) -> RoomSettings:
        """The settings that hold."""
        return self.state.settings or DEFAULTS


def find_room(view: WriteTransaction | View, name: str) -> FoundRoom | None:
    """The room of a name: there is one if there is its log."""
    found = find_log(view, log_of(name))
    return None if found is None else _room(view, *found)


def make_room(tx: WriteTransaction, name: str) -> FoundRoom:
    """The room of a name; made if there is none."""
    return _room(tx, *make_log(tx, log_of(name)))


def _room(view: WriteTransaction | View, log_id: int, head: Head) -> FoundRoom:
    return FoundRoom(log_id, head, view.entity(room_keys.room(log_id), RoomState))
