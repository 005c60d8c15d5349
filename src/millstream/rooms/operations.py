"""Operations on a room: settings, deletion and description."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from millstream.engine.commit import Row
from millstream.errors import Conflict
from millstream.format import keys, room_keys
from millstream.log.commands import DeleteLog
from millstream.log.model.head import Head, Name
from millstream.log.model.names import ROOM
from millstream.log.rules import operations as logs
from millstream.log.rules.ancestry import FORK_NAME, Tail
from millstream.log.rules.guards import LogGuard
from millstream.record import moment
from millstream.rooms import commands as c
from millstream.rooms.lookup import FoundRoom, find_room, make_room
from millstream.rooms.model import RoomInfo, RoomLook
from millstream.rooms.names import log_of, room_of
from millstream.rooms.presence import (
    FIRST_ROWS,
    ROWS_MAX,
    first_present_of,
    move_presence,
    presence_rows,
)
from millstream.rooms.retained import decode_value, forget_types, retained_page
from millstream.rooms.settings import DEFAULTS
from millstream.rooms.state import RetainedCounted, RoomSpecified, RoomState, RoomTaken
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View
from millstream.store.store import Store

NAMES_PER_STEP = 500


def specify(tx: WriteTransaction, command: c.SpecifyRoom) -> None:
    """Change the settings of a room, and delete values of types that are no longer retained."""
    command.settings.check()
    room = make_room(tx, command.room)
    before = room.settings
    if command.expect is not None and before != command.expect:
        raise Conflict(f"the settings of room {command.room!r} were changed meanwhile; try again")
    if command.settings == room.state.settings:
        return
    count, size = forget_types(
        tx, room, sorted(before.retained_types - command.settings.retained_types)
    )
    tx.change(room.key, RoomSpecified(command.settings))
    if count:
        tx.change(room.key, RetainedCounted(-count, -size))


def delete(tx: WriteTransaction, command: c.DeleteRoom) -> bool:
    """Delete a room."""
    command_of_log = DeleteLog(log_of(command.room))
    forget_room(tx, command_of_log)
    return logs.delete_log(tx, command_of_log)


def forget_room(tx: WriteTransaction, command: DeleteLog) -> None:
    """Delete the state of a room besides its log, before the log is deleted."""
    log = logs.find_log(tx, command.log)
    if log is not None:
        log_id, _ = log
        for kind in (keys.RETAINED, keys.PRESENCE):
            while tx.drop_some(*keys.of_queue(kind, log_id), limit=ROWS_MAX):
                pass
        if tx.entity(room_keys.room(log_id), RoomState).exists():
            tx.change(room_keys.room(log_id), None)


def move_room(tx: WriteTransaction, tail: Tail) -> None:
    """Move the state of a room to the log that took the name of the room's log."""
    before, after = room_keys.room(tail.log_id), room_keys.room(tail.new_id)
    state = tx.entity(before, RoomState)
    if state.exists():
        taken = RoomTaken(
            settings=state.settings,
            retained=state.retained,
            retained_bytes=state.retained_bytes,
            users=state.users,
            connections=state.connections,
            generation=state.generation,
            resumed=dict(state.resumed),
        )
        tx.change(before, None)
        tx.change(after, taken)
    start, stop = keys.of_queue(keys.RETAINED, tail.log_id)
    while rows := tx.scan(start, stop, limit=ROWS_MAX):
        for key, value in rows:
            tx.erase(key)
            tx.put(keys.with_owner(key, tail.new_id), value)
    move_presence(tx, tail)


DELETE_GUARD = LogGuard((ROOM,), forget_room)
"""Runs before the log of a room is deleted."""


def describe_room(view: View, query: c.DescribeRoom) -> RoomInfo | None:
    """Describe a room."""
    room = find_room(view, query.room)
    return None if room is None else _info(room)


def list_rooms(view: View, query: c.ListRooms) -> list[RoomInfo]:
    """List rooms in the order of their names."""
    rooms: list[RoomInfo] = []
    for room in all_rooms(view, after=query.after):
        if len(rooms) == query.limit:
            break
        rooms.append(_info(room))
    return rooms


def all_rooms(view: View, *, after: str = "") -> Iterator[FoundRoom]:
    """Yield rooms in the order of their names, without tails that were set aside."""
    prefix = keys.log_name(ROOM)
    start, stop = keys.range_of(prefix)
    if after:
        start = keys.successor(prefix + after.encode())
    while page := view.find(start, stop, limit=NAMES_PER_STEP):
        for key in page:
            log_id = view.entity(key, Name).log_id
            head = view.entity(keys.head(log_id), Head)
            if FORK_NAME not in head.name and head.name != ROOM:
                yield FoundRoom(log_id, head, view.entity(room_keys.room(log_id), RoomState))
        start = keys.successor(page[-1])


def look_into_room(store: Store, query: c.LookIntoRoom) -> RoomLook:
    """Return the contents of a room for a joiner."""

    def look(view: View) -> tuple[RoomLook, list[Row], list[Row]]:
        room = find_room(view, query.room)
        if room is None:
            return _NOWHERE, [], []
        head = room.head
        contents = RoomLook(
            settings=room.settings,
            start=head.start,
            offset=head.end,
            generation=room.state.generation,
            retained=[],
            users=room.state.users,
            presence=[],
            log_id=room.log_id,
        )
        presence = presence_rows(view, room, limit=FIRST_ROWS)
        retained_rows, after = retained_page(view, room, query.types)
        return replace(contents, more_after=after), retained_rows, presence

    contents, retained_rows, presence = store.view(look)
    retained = [decode_value(row) for row in retained_rows]
    return replace(contents, retained=retained, presence=first_present_of(presence))


_NOWHERE = RoomLook(
    settings=DEFAULTS,
    start=0,
    offset=0,
    generation=0,
    retained=[],
    users=0,
    presence=[],
)


def _info(room: FoundRoom) -> RoomInfo:
    head, state = room.head, room.state
    return RoomInfo(
        name=room_of(head.name),
        settings=room.settings,
        start_offset=head.start,
        end_offset=head.end,
        bytes=head.bytes,
        created=moment(head.created_ms),
        timestamp=head.timestamp_ms,
        retained=state.retained,
        retained_bytes=state.retained_bytes,
        users=state.users,
        connections=state.connections,
    )
