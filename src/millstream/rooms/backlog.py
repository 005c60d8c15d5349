"""Backlogs: what one server has not delivered yet of the messages of its rooms.

Each server looks after its own delivery, by the place in memory that it has come to: another server
that hangs, was started again or is gone is no reason to call this one ill. A message that was
delivered is no backlog, however long the room remembers it; a message that expired before it was
delivered still is.
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
from millstream.rooms.finding import FoundRoom
from millstream.rooms.names import room_of
from millstream.rooms.operations import all_rooms
from millstream.store.state.view import View
from millstream.store.store import Store

MESSAGES_WARNING, MESSAGES_CRITICAL = 1_000, 5_000
AGE_S_WARNING, AGE_S_CRITICAL = 10.0, 30.0

ROOMS_PER_LOOK = 200
ROOMS_LOOKED_AT = 10_000


class RoomBacklog(Struct, frozen=True, kw_only=True):
    """How a room stands."""

    room: str
    messages: int = 0
    """Messages that can be read again."""
    sent: int = 0
    """Messages that were ever sent."""
    unpassed: int = 0
    """Messages that this server has yet to deliver to listeners of its own."""
    oldest_s: float = 0.0
    """The age of the oldest of them, and at least as long as the delivery stands still."""
    users: int = 0
    connections: int = 0
    retained: int = 0

    @property
    def status(self) -> Status:
        """The worse of what the number and what the age says."""
        return grade(self.unpassed, self.oldest_s)


class OwnPlace(NamedTuple):
    """How far a server has come in the rooms in which it has listeners."""

    instance: str = ""
    positions: Mapping[str, int] = {}
    """The first offset not yet delivered, by room."""


NOWHERE = OwnPlace()


def grade(messages: int, age_s: float) -> Status:
    """How bad a backlog is: the worse of what its number and what its age says."""
    if messages > MESSAGES_CRITICAL or age_s > AGE_S_CRITICAL:
        return "critical"
    if messages >= MESSAGES_WARNING or age_s >= AGE_S_WARNING:
        return "warning"
    return "healthy"


def find_backlogs(store: Store, own: OwnPlace = NOWHERE) -> list[RoomBacklog]:
    """How rooms stand, in the order of their names, looked at in steps; of very many, the first."""
    found: list[RoomBacklog] = []
    while len(found) < ROOMS_LOOKED_AT:
        after = found[-1].room if found else ""
        page = store.view(partial(_page, after=after, own=own))
        found += page
        if len(page) < ROOMS_PER_LOOK:
            break
    return found


def _page(view: View, after: str, own: OwnPlace) -> list[RoomBacklog]:
    rooms = islice(all_rooms(view, after=after), ROOMS_PER_LOOK)
    return [_backlog(view, room, own) for room in rooms]


def _backlog(view: View, room: FoundRoom, own: OwnPlace) -> RoomBacklog:
    head, name = room.head, room_of(room.head.name)
    position = min(own.positions.get(name, head.end), head.end)
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
    """The age of the first message from an offset on that can still be read.

    If none can, the last change of the log: the message is no younger.
    """
    head, now_ms = room.head, view.state.clock.wall_ms()
    sent_ms = head.timestamp_ms
    at = head.next_at(max(offset, head.start))
    if at < head.end:
        with suppress(CorruptionError, RowMoved):
            for first, value in entries_of(view, room.log_id, start=at, stop=at + 1):
                sent_ms = entries.decode_places(value).appended[at - first]
    return max(0.0, (now_ms - sent_ms) / 1000)
