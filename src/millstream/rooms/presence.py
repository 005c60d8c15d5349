"""Presence: the users of a room, as rows that an instance maintains, one row per connection.

A user is present while there is a row. A connection that ends is only marked, and its row is
deleted some seconds later: a user who comes back by then was never away. The rows of a dead
instance are marked in the same way, as of the end of its lease or the start of its successor.

    presence     room, user, instance, connection    one row per connection, with its state
    attendance   generation, then the same           while the connection is open
    departure    due time, then the same             after the connection has ended
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from millstream.engine.commit import Row
from millstream.errors import Locked, NotFound, NotOwner
from millstream.format import keys, room_keys
from millstream.log.commands import Append
from millstream.log.model.head import Head
from millstream.log.model.names import check_name
from millstream.log.rules.ancestry import Tail
from millstream.log.rules.operations import append
from millstream.rooms import commands as c
from millstream.rooms.instance_state import InstanceState
from millstream.rooms.instances import all_instances, need_instance
from millstream.rooms.lookup import FoundRoom, find_room, make_room
from millstream.rooms.model import Joined, PresenceList, Present
from millstream.rooms.names import JOINED, LEFT
from millstream.rooms.packed_messages import (
    announcement,
    check_client,
    check_sender,
    state_announcement,
)
from millstream.rooms.presence_state import (
    Connection,
    check_state,
    decode_connection,
    encode_connection,
    shown_state,
)
from millstream.rooms.state import PeopleCounted, RoomState
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View
from millstream.store.store import Store

GRACE_MS = 5_000
"""How long a user may be away before the room is told."""

AGAIN_MS = 1_000
"""How long a departure is postponed if the room's log is held."""

ROWS_MAX = 1_000_000
CONNECTIONS_MAX = 10_000
"""Connections of a user among which a state is set."""

FIRST_USERS = 100
"""Users in the answer to a joiner: all users of a crowded room would take many kilobytes."""
FIRST_ROWS = 4 * FIRST_USERS
"""Connections that are read for the answer."""


def join(tx: WriteTransaction, command: c.JoinRoom) -> Joined:
    """Store a connection, and announce a user's first connection to the room."""
    need_instance(tx, command.instance, command.generation)
    room = make_room(tx, command.room)
    is_first = False
    if command.user:
        is_first = _enter(tx, room, command)
    return Joined(
        settings=room.settings, start=room.head.start, offset=room.head.end, is_first=is_first
    )


def _enter(tx: WriteTransaction, room: FoundRoom, command: c.JoinRoom) -> bool:
    user = check_sender(command.user)
    connection = check_name(command.connection, "connection")
    client = command.client and check_client(command.client)
    key = room_keys.presence(room.log_id, user, command.instance, connection)
    is_first = not tx.scan(*keys.range_of(room_keys.presences(room.log_id, user)), limit=1)
    before = _find(tx, key)
    if before is not None and before.due_ms:
        tx.erase(room_keys.departure(before.due_ms, key))
    elif before is not None:
        tx.erase(room_keys.attendance(before.generation, key))
    came = before is None or bool(before.due_ms)
    connection_now = Connection(client, tx.wall_ms, command.generation)
    if before is not None:  # the lease was lost and taken again: the client has set nothing anew
        connection_now = replace(before, client=client, generation=command.generation, due_ms=0)
    tx.put(key, encode_connection(connection_now))
    tx.put(room_keys.attendance(command.generation, key), b"")
    if came:
        tx.change(room.key, PeopleCounted(int(is_first), 1))
    if is_first:
        append(tx, Append(room.head.name, announcement(JOINED, [user])))
    if command.state:
        set_state(tx, c.SetPresence(command.room, user, connection, command.state))
    return is_first


def set_state(tx: WriteTransaction, command: c.SetPresence) -> None:
    """Set the state of a connection; tell the room if its user is shown with another state now."""
    state = check_state(command.state)
    room = find_room(tx, command.room)
    connections = {} if room is None else _connections(tx, room.log_id, command.user)
    key = next((key for key in connections if _is_of(key, command.connection)), b"")
    if room is None or not key or connections[key].due_ms:
        raise NotFound(
            f"the user {command.user!r} has no such open connection to room {command.room!r}: "
            "connect again, then set the state",
            room=command.room,
            user=command.user,
        )
    turn, before = shown_state(connections.values())
    tx.put(key, encode_connection(replace(connections[key], state=state, turn=turn + 1)))
    if state != before:
        append(tx, Append(room.head.name, state_announcement(command.user, state)))


def _connections(tx: WriteTransaction, log_id: int, user: str) -> dict[bytes, Connection]:
    """Return the connections of a user to a room, by key."""
    bounds = keys.range_of(room_keys.presences(log_id, user))
    rows = tx.scan(*bounds, limit=CONNECTIONS_MAX)
    return {key: decode_connection(key, value) for key, value in rows}


def _is_of(key: bytes, connection: str) -> bool:
    return room_keys.presence_parts(key)[3] == connection


def leave(tx: WriteTransaction, command: c.LeaveRooms) -> None:
    """Mark connections that have ended, by themselves or with their generation."""
    state = tx.entity(room_keys.instance(command.instance), InstanceState)
    ended_ms = state.end_of(command.generation, store_ms=tx.store_ms)
    due_ms = (tx.store_ms if ended_ms is None else ended_ms) + GRACE_MS
    gone: dict[bytes, int] = {}
    for leaving in command.left:
        room = find_room(tx, leaving.room)
        if room is None or not leaving.user:
            continue
        key = room_keys.presence(room.log_id, leaving.user, command.instance, leaving.connection)
        connection = _find(tx, key)
        if (
            connection is not None
            and connection.generation == command.generation
            and not connection.due_ms
        ):
            _mark(tx, key, connection, due_ms=due_ms)
            gone[room.key] = gone.get(room.key, 0) + 1
    _count(tx, gone)


def _find(tx: WriteTransaction, key: bytes) -> Connection | None:
    value = tx.get(key)
    return None if value is None else decode_connection(key, value)


def _mark(tx: WriteTransaction, key: bytes, connection: Connection, *, due_ms: int) -> None:
    """Mark a connection as ended, and note until when its user may come back."""
    tx.put(key, encode_connection(replace(connection, due_ms=due_ms)))
    tx.put(room_keys.departure(due_ms, key), b"")
    tx.erase(room_keys.attendance(connection.generation, key))


def _count(tx: WriteTransaction, gone: dict[bytes, int]) -> None:
    for room_key, count in gone.items():
        if tx.entity(room_key, RoomState).connections:
            tx.change(room_key, PeopleCounted(0, -count))


def move_presence(tx: WriteTransaction, tail: Tail) -> None:
    """Move the connections of a room to the log that took the name of the room's log."""
    start, stop = keys.of_queue(keys.PRESENCE, tail.log_id)
    while rows := tx.scan(start, stop, limit=ROWS_MAX):
        for key, value in rows:
            moved, connection = keys.with_owner(key, tail.new_id), decode_connection(key, value)
            tx.erase(key)
            tx.put(moved, value)
            if connection.due_ms:
                tx.erase(room_keys.departure(connection.due_ms, key))
                tx.put(room_keys.departure(connection.due_ms, moved), b"")
            else:
                tx.erase(room_keys.attendance(connection.generation, key))
                tx.put(room_keys.attendance(connection.generation, moved), b"")


# Settling.


def needs_settling(view: View) -> bool:
    """Whether a connection must be marked or forgotten now."""
    _, now_ms = view.state.time.now()
    if view.scan(*room_keys.departures(now_ms), limit=1):
        return True
    return any(view.scan(*bounds, limit=1) for bounds, _ in _dead(view, now_ms))


def settle(tx: WriteTransaction, command: c.SettlePresence) -> int:
    """Delete due connections, announce departures, and mark connections of dead generations."""
    departures = _forget_due(tx, command.limit)
    _mark_dead(tx, command.limit)
    return departures


def _forget_due(tx: WriteTransaction, limit: int) -> int:
    due: dict[bytes, list[bytes]] = {}
    for key, _ in tx.view.scan(*room_keys.departures(tx.store_ms), limit=limit):
        tx.erase(key)
        presence = room_keys.departed(key)
        log_id, user, _, _ = room_keys.presence_parts(presence)
        due.setdefault(room_keys.presences(log_id, user), []).append(presence)
    gone: dict[int, list[tuple[str, list[bytes]]]] = {}
    for prefix, rows in due.items():
        present_rows = {key for key, _ in tx.view.scan(*keys.range_of(prefix), limit=len(rows) + 1)}
        if not present_rows:
            continue  # the room was deleted
        if present_rows <= {*rows}:
            log_id, user, _, _ = room_keys.presence_parts(rows[0])
            gone.setdefault(log_id, []).append((user, rows))
        else:
            _forget_some(tx, rows)
    return sum(_tell(tx, log_id, users) for log_id, users in gone.items())


def _forget_some(tx: WriteTransaction, rows: list[bytes]) -> None:
    """Delete some connections of a user who stays, and tell the room if the shown state changes."""
    log_id, user, _, _ = room_keys.presence_parts(rows[0])
    connections = _connections(tx, log_id, user)
    remaining = [each for key, each in connections.items() if key not in {*rows}]
    before, after = shown_state(connections.values())[1], shown_state(remaining)[1]
    if before != after:
        head = tx.entity(keys.head(log_id), Head)
        try:
            append(tx, Append(head.name, state_announcement(user, after)))
        except Locked:
            for key in rows:
                _put_off(tx, key)
            return
        except NotOwner:
            pass  # the room is a copy now: its owner announces states
    _erase_all(tx, rows)


def _tell(tx: WriteTransaction, log_id: int, gone: list[tuple[str, list[bytes]]]) -> int:
    """Delete users of a room, and announce their departure; postpone both if the log is held."""
    head = tx.entity(keys.head(log_id), Head)
    try:
        append(tx, Append(head.name, announcement(LEFT, [user for user, _ in gone])))
    except Locked:
        for _, rows in gone:
            for key in rows:
                _put_off(tx, key)
        return 0
    except NotOwner:
        pass  # the room is a copy now: its owner announces departures
    for _, rows in gone:
        _erase_all(tx, rows)
    tx.change(room_keys.room(log_id), PeopleCounted(-len(gone), 0))
    return len(gone)


def _put_off(tx: WriteTransaction, key: bytes) -> None:
    connection = _find(tx, key)
    if connection is not None:
        due_ms = tx.store_ms + AGAIN_MS
        tx.put(key, encode_connection(replace(connection, due_ms=due_ms)))
        tx.put(room_keys.departure(due_ms, key), b"")


def _erase_all(tx: WriteTransaction, rows: Iterable[bytes]) -> None:
    for key in rows:
        tx.erase(key)


def _mark_dead(tx: WriteTransaction, limit: int) -> None:
    """Mark the connections of generations that have ended."""
    gone: dict[bytes, int] = {}
    for (start, stop), ended_ms in _dead(tx.view, tx.store_ms):
        rows = tx.view.scan(start, stop, limit=limit)
        limit -= len(rows)
        for key, _ in rows:
            presence = room_keys.attended(key)
            connection = _find(tx, presence)
            if (
                connection is None
                or connection.due_ms
                or room_keys.attendance(connection.generation, presence) != key
            ):
                tx.erase(key)  # the room was deleted
                continue
            _mark(tx, presence, connection, due_ms=ended_ms + GRACE_MS)
            room_key = room_keys.room(room_keys.presence_parts(presence)[0])
            gone[room_key] = gone.get(room_key, 0) + 1
        if limit <= 0:
            break
    _count(tx, gone)


def _dead(view: View, now_ms: int) -> Iterator[tuple[tuple[bytes, bytes], int]]:
    """Yield the attendance ranges of ended generations, and the end time of each."""
    start, stop = keys.range_of(keys.prefix(keys.ATTENDANCE))
    ends: dict[int, int | None] | None = None
    while rows := view.scan(start, stop, limit=1):
        if ends is None:
            ends = _ends(view, now_ms)
        generation = room_keys.generation_of(rows[0][0])
        ended_ms = ends.get(generation, 0)
        bounds = keys.of_queue(keys.ATTENDANCE, generation)
        if ended_ms is not None:
            yield bounds, ended_ms
        start = bounds[1]


def _ends(view: View, now_ms: int) -> dict[int, int | None]:
    """Return the end time of each known generation, None while it lives.

    Unknown generations ended long ago.
    """
    ends: dict[int, int | None] = {}
    for _, instance in all_instances(view):
        ends |= instance.ended
        ends[instance.generation] = instance.end_of(instance.generation, store_ms=now_ms)
    return ends


# Reads.


def get_presence(store: Store, query: c.GetPresence) -> PresenceList:
    """Return the users in a room."""

    def look(view: View) -> tuple[int, list[Row]]:
        room = find_room(view, query.room)
        return (0, []) if room is None else (room.head.end, presence_rows(view, room))

    offset, rows = store.view(look)
    if rows:
        store.start_keeper()  # from now on the keeper removes users who have left
    return PresenceList(offset=offset, users=present_of(rows))


def presence_rows(view: View, room: FoundRoom, *, limit: int = ROWS_MAX) -> list[Row]:
    """Return the rows of a room's connections, in the order of users, to be decoded unlocked."""
    if not room.state.users:
        return []
    return view.scan(*keys.of_queue(keys.PRESENCE, room.log_id), limit=limit)


def first_present_of(rows: list[Row]) -> list[Present]:
    """Return the first users of a room, from up to `FIRST_ROWS` connections."""
    users = present_of(rows)
    if len(rows) == FIRST_ROWS and len(users) > 1:
        del users[-1]  # the last user may have more connections
    return users[:FIRST_USERS]


def present_of(rows: list[Row]) -> list[Present]:
    """Return the users in a room in the order of names, from the room's connections."""
    users: dict[str, list[Connection]] = {}
    for key, value in rows:
        users.setdefault(room_keys.presence_user(key), []).append(decode_connection(key, value))
    return [
        Present(
            user=user,
            since_ms=min([each.since_ms for each in connections]),
            connections=sum([not each.due_ms for each in connections]),
            state_json=shown_state(connections)[1],
        )
        for user, connections in users.items()
    ]
