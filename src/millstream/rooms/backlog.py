"""Backlogs: what living instances have not passed yet of the messages of rooms.

A message that every living instance has passed is delivered, however long the room remembers it: so
a long time to live is no backlog. How far an instance has come is stored about once per second;
what is younger than that counts as passed, unless the instance itself says how far it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from millstream.errors import CorruptionError
from millstream.format import entries, keys
from millstream.log.cursor_state import CursorState
from millstream.log.reader import RowMoved, entries_of
from millstream.record import Status
from millstream.rooms.finding import FoundRoom
from millstream.rooms.instances import all_instances
from millstream.rooms.names import room_of, watermark_of
from millstream.rooms.operations import all_rooms
from millstream.store.rows import View
from millstream.store.store import Store

NOTED_S = 2.5
"""Within so long an instance that keeps up has stored how far it has come."""

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
    """Messages that the slowest living instance has not passed."""
    oldest_s: float = 0.0
    """The age of the oldest of them; 0 if there are none."""
    users: int = 0
    connections: int = 0
    retained: int = 0

    @property
    def status(self) -> Status:
        """The worse of what the number and what the age says."""
        return grade(self.unpassed, self.oldest_s)


class OwnPlace(NamedTuple):
    """How far the instance that asks has come itself."""

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
    _, now_ms = view.state.time.now()
    others = [
        name for name, one in all_instances(view) if one.until_ms > now_ms and name != own.instance
    ]
    rooms = islice(all_rooms(view, after=after), ROOMS_PER_LOOK)
    return [_backlog(view, room, others, own) for room in rooms]


def _backlog(view: View, room: FoundRoom, others: list[str], own: OwnPlace) -> RoomBacklog:
    head, name = room.head, room_of(room.head.name)
    behind = [place for place in _behind(view, room, others) if place[1] >= NOTED_S]
    if (position := own.positions.get(name)) is not None and position < head.end:
        behind += _places(view, room, position)
    first, oldest_s = min(behind, default=(head.end, 0.0))
    return RoomBacklog(
        room=name,
        messages=head.end - head.start,
        sent=head.end,
        unpassed=head.count(first, head.end),
        oldest_s=oldest_s,
        users=room.state.users,
        connections=room.state.connections,
        retained=room.state.retained,
    )


def _behind(view: View, room: FoundRoom, instances: list[str]) -> Iterator[tuple[int, float]]:
    """Where the slowest of some instances goes on, and how old that message is."""
    floors = [
        state.marks.floor
        for name in instances
        if (state := view.entity(keys.cursor(room.log_id, watermark_of(name)), CursorState)).present
    ]
    lowest = min(floors, default=room.head.end)
    return iter(_places(view, room, lowest))


def _places(view: View, room: FoundRoom, offset: int) -> list[tuple[int, float]]:
    """The first message from an offset on that can still be read, and its age; none at the end."""
    head = room.head
    at = head.next_at(max(offset, head.start))
    if at >= head.end:
        return []
    appended_ms = view.state.clock.wall_ms()  # what cannot be read has no age
    with suppress(CorruptionError, RowMoved):
        for first, value in entries_of(view, room.log_id, start=at, stop=at + 1):
            appended_ms = entries.decode_places(value).appended[at - first]
    return [(at, max(0.0, (view.state.clock.wall_ms() - appended_ms) / 1000))]
