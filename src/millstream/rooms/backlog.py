"""Backlogs: messages of rooms that a server has not delivered yet.

Each server watches only its own delivery, by positions in memory: another server that hangs, was
restarted or is gone does not make this server unhealthy. A delivered message is no backlog, however
long the room keeps it; a message that expired before its delivery still is.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from millstream.errors import CorruptionError
from millstream.format import entries
from millstream.log.reading.reader import RowMoved, entries_of
from millstream.record import Status
from millstream.rooms.lookup import FoundRoom
from millstream.rooms.names import room_of
from millstream.rooms.operations import all_rooms
from millstream.store.state.view import View
from millstream.store.store import Store

MESSAGES_WARNING, MESSAGES_CRITICAL = 1_000, 5_000
AGE_S_WARNING, AGE_S_CRITICAL = 10.0, 30.0

ROOMS_PER_LOOK = 200
ROOMS_LOOKED_AT = 10_000


class RoomBacklog(Struct, frozen=True, kw_only=True):
    """The state of a room and of its delivery."""

    room: str
    messages: int = 0
    """Messages that can be read again."""
    sent: int = 0
    """Messages that were ever sent."""
    unpassed: int = 0
    """Messages that the server has yet to deliver."""
    oldest_s: float = 0.0
    """The age of the oldest undelivered message, at least the time for which the delivery stands
    still."""
    users: int = 0
    connections: int = 0
    retained: int = 0

    @property
    def status(self) -> Status:
        """Return the worse grade of the number and the age."""
        return grade(self.unpassed, self.oldest_s)


class OwnPlace(NamedTuple):
    """The progress of a server in the rooms in which it has listeners."""

    instance: str = ""
    positions: Mapping[str, int] = {}
    """The first undelivered offset of each room."""


NOWHERE = OwnPlace()


def grade(messages: int, age_s: float) -> Status:
    """Grade a backlog: the worse grade of its number and its age."""
    if messages > MESSAGES_CRITICAL or age_s > AGE_S_CRITICAL:
        return "critical"
    if messages >= MESSAGES_WARNING or age_s >= AGE_S_WARNING:
        return "warning"
    return "healthy"


def find_backlogs(store: Store, delivered: OwnPlace = NOWHERE) -> list[RoomBacklog]:
    """Return the backlogs of the first rooms, in the order of their names, read in steps."""
    backlogs: list[RoomBacklog] = []
    while len(backlogs) < ROOMS_LOOKED_AT:
        after = backlogs[-1].room if backlogs else ""
        page = store.view(partial(_page, after=after, delivered=delivered))
        backlogs += page
        if len(page) < ROOMS_PER_LOOK:
            break
    return backlogs


def _page(view: View, after: str, delivered: OwnPlace) -> list[RoomBacklog]:
    rooms = islice(all_rooms(view, after=after), ROOMS_PER_LOOK)
    return [_backlog(view, room, delivered) for room in rooms]


def _backlog(view: View, room: FoundRoom, delivered: OwnPlace) -> RoomBacklog:
    head, name = room.head, room_of(room.head.name)
    position = min(delivered.positions.get(name, head.end), head.end)
    unpassed = head.count(position, head.end)
    return RoomBacklog(
        room=name,
        messages=head.end - head.start,
        sent=head.end,
        unpassed=unpassed,
        oldest_s=_age_s(view, room, position) if unpassed else 0.0,
        users=room.state.users,
        connections=room.state.connections,
        retained=room.state.retained,
    )


def _age_s(view: View, room: FoundRoom, offset: int) -> float:
    """Return the age of the first readable message from an offset on.

    Without a readable message, the last change of the log counts: the message is no younger.
    """
    head, now_ms = room.head, view.state.clock.wall_ms()
    sent_ms = head.timestamp_ms
    at = head.next_at(max(offset, head.start))
    if at < head.end:
        with suppress(CorruptionError, RowMoved):
            for first, value in entries_of(view, room.log_id, start=at, stop=at + 1):
                sent_ms = entries.decode_places(value).appended[at - first]
    return max(0.0, (now_ms - sent_ms) / 1000)
