"""Presence: who is in a room, as rows that an instance keeps up, one for each connection.

A user is there as long as there is a row. A connection that ends is only marked, and its row goes
some seconds later: who comes back by then has never been away. The rows of an instance that died
are marked alike, as of the moment at which its lease ended or its successor came.

    presence     room, user, instance, connection    one row for each connection
    attendance   generation, then the same           while the connection is there
    departure    due time, then the same             once it has ended
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from millstream.engine.commit import Row
from millstream.errors import CorruptionError, Locked, NotOwner
from millstream.format import keys, room_keys
from millstream.log.commands import Append
from millstream.log.model.head import Head
from millstream.log.model.names import check_name
from millstream.log.rules.operations import append
from millstream.rooms import commands as c
from millstream.rooms.finding import FoundRoom, find_room, make_room
from millstream.rooms.instance_state import InstanceState
from millstream.rooms.instances import all_instances, need_instance
from millstream.rooms.model import Joined, PresenceList, Present
from millstream.rooms.names import JOINED, LEFT
from millstream.rooms.packing import announcement, check_client, check_sender
from millstream.rooms.state import PeopleCounted, RoomState
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View
from millstream.store.store import Store

GRACE_MS = 5_000
"""How long a user may be away without the room being told."""

AGAIN_MS = 1_000
"""How long a departure waits that could not be told, because the room's log is held."""

ROWS_MAX = 1_000_000

FIRST_USERS = 100
"""Users that a joiner is told of: with all of a crowded room, each joiner would get many kilobytes."""
FIRST_ROWS = 4 * FIRST_USERS
"""Connections that are looked at for it."""


class Connection(Struct, array_like=True, frozen=True):
    """The value of a presence row."""

    client: str
    since_ms: int
    generation: int
    due_ms: int = 0
    """When it is forgotten, in store time; 0 while it is there."""


_decode = msgspec.msgpack.Decoder(Connection).decode
_encode = msgspec.msgpack.Encoder().encode


def decode_connection(key: bytes, value: bytes) -> Connection:
    """A presence row's value."""
    try:
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"a presence: {error}", what="presence", where=key.hex()) from error


def join(tx: WriteTransaction, command: c.JoinRoom) -> Joined:
    """Note a connection; the first one of a user is told to the room."""
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
    since_ms = tx.wall_ms if before is None else before.since_ms
    tx.put(key, _encode(Connection(client, since_ms, command.generation)))
    tx.put(room_keys.attendance(command.generation, key), b"")
    if came:
        tx.change(room.key, PeopleCounted(int(is_first), 1))
    if is_first:
        append(tx, Append(room.head.name, announcement(JOINED, [user])))
    return is_first


def leave(tx: WriteTransaction, command: c.LeaveRooms) -> None:
    """Mark connections that have ended; those of an earlier generation ended with that."""
    state = tx.entity(room_keys.instance(command.instance), InstanceState)
    ended_ms = state.end_of(command.generation, store_ms=tx.store_ms)
    due_ms = (tx.store_ms if ended_ms is None else ended_ms) + GRACE_MS
    gone: dict[bytes, int] = {}
    for one in command.left:
        room = find_room(tx, one.room)
        if room is None or not one.user:
            continue
        key = room_keys.presence(room.log_id, one.user, command.instance, one.connection)
        found = _find(tx, key)
        if found is not None and found.generation == command.generation and not found.due_ms:
            _mark(tx, key, found, due_ms=due_ms)
            gone[room.key] = gone.get(room.key, 0) + 1
    _count(tx, gone)


def _find(tx: WriteTransaction, key: bytes) -> Connection | None:
    value = tx.get(key)
    return None if value is None else decode_connection(key, value)


def _mark(tx: WriteTransaction, key: bytes, found: Connection, *, due_ms: int) -> None:
    """Note that a connection has ended, and until when its user may come back."""
    tx.put(key, _encode(replace(found, due_ms=due_ms)))
    tx.put(room_keys.departure(due_ms, key), b"")
    tx.erase(room_keys.attendance(found.generation, key))


def _count(tx: WriteTransaction, gone: dict[bytes, int]) -> None:
    for room_key, count in gone.items():
        if tx.entity(room_key, RoomState).connections:
            tx.change(room_key, PeopleCounted(0, -count))


# Settling.


def needs_settling(view: View) -> bool:
    """Whether a connection is to be marked or forgotten now."""
    _, now_ms = view.state.time.now()
    if view.scan(*room_keys.departures(now_ms), limit=1):
        return True
    return any(view.scan(*one, limit=1) for one, _ in _dead(view, now_ms))


def settle(tx: WriteTransaction, command: c.SettlePresence) -> int:
    """Forget connections that are due, tell rooms of users who have gone, and mark what has died."""
    left = _forget_due(tx, command.limit)
    _mark_dead(tx, command.limit)
    return left


def _forget_due(tx: WriteTransaction, limit: int) -> int:
    due: dict[bytes, list[bytes]] = {}
    for key, _ in tx.view.scan(*room_keys.departures(tx.store_ms), limit=limit):
        tx.erase(key)
        presence = room_keys.departed(key)
        log_id, user, _, _ = room_keys.presence_parts(presence)
        due.setdefault(room_keys.presences(log_id, user), []).append(presence)
    gone: dict[int, list[tuple[str, list[bytes]]]] = {}
    for prefix, rows in due.items():
        found = {key for key, _ in tx.view.scan(*keys.range_of(prefix), limit=len(rows) + 1)}
        if not found:
            continue  # the room was deleted
        if found <= {*rows}:
            log_id, user, _, _ = room_keys.presence_parts(rows[0])
            gone.setdefault(log_id, []).append((user, rows))
        else:
            _erase_all(tx, rows)
    return sum(_tell(tx, log_id, users) for log_id, users in gone.items())


def _tell(tx: WriteTransaction, log_id: int, gone: list[tuple[str, list[bytes]]]) -> int:
    """Forget users of one room, and tell it; if its log is held, later."""
    head = tx.entity(keys.head(log_id), Head)
    try:
        append(tx, Append(head.name, announcement(LEFT, [user for user, _ in gone])))
    except Locked:
        for _, rows in gone:
            for key in rows:
                _put_off(tx, key)
        return 0
    except NotOwner:
        pass  # the room is a copy now: it is told where it is written
    for _, rows in gone:
        _erase_all(tx, rows)
    tx.change(room_keys.room(log_id), PeopleCounted(-len(gone), 0))
    return len(gone)


def _put_off(tx: WriteTransaction, key: bytes) -> None:
    found = _find(tx, key)
    if found is not None:
        due_ms = tx.store_ms + AGAIN_MS
        tx.put(key, _encode(replace(found, due_ms=due_ms)))
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
            found = _find(tx, presence)
            if (
                found is None
                or found.due_ms
                or room_keys.attendance(found.generation, presence) != key
            ):
                tx.erase(key)  # of a room that was deleted
                continue
            _mark(tx, presence, found, due_ms=ended_ms + GRACE_MS)
            room_key = room_keys.room(room_keys.presence_parts(presence)[0])
            gone[room_key] = gone.get(room_key, 0) + 1
        if limit <= 0:
            break
    _count(tx, gone)


def _dead(view: View, now_ms: int) -> Iterator[tuple[tuple[bytes, bytes], int]]:
    """The attendances of generations that have ended, as ranges, and when each did."""
    start, stop = keys.range_of(keys.prefix(keys.ATTENDANCE))
    ends: dict[int, int | None] | None = None
    while rows := view.scan(start, stop, limit=1):
        if ends is None:
            ends = _ends(view, now_ms)
        generation = room_keys.generation_of(rows[0][0])
        ended_ms = ends.get(generation, 0)
        found = keys.of_queue(keys.ATTENDANCE, generation)
        if ended_ms is not None:
            yield found, ended_ms
        start = found[1]


def _ends(view: View, now_ms: int) -> dict[int, int | None]:
    """When generations ended, None for those that have not; what is not in it ended long ago."""
    found: dict[int, int | None] = {}
    for _, one in all_instances(view):
        found |= one.ended
        found[one.generation] = one.end_of(one.generation, store_ms=now_ms)
    return found


# Looking.


def get_presence(store: Store, query: c.GetPresence) -> PresenceList:
    """The users in a room."""

    def look(view: View) -> tuple[int, list[Row]]:
        room = find_room(view, query.room)
        return (0, []) if room is None else (room.head.end, presence_rows(view, room))

    offset, rows = store.view(look)
    if rows:
        store.start_keeper()  # from now on users who are gone leave
    return PresenceList(offset=offset, users=present_of(rows))


def presence_rows(view: View, room: FoundRoom, *, limit: int = ROWS_MAX) -> list[Row]:
    """The connections to a room, in the order of users; they are decoded without a lock."""
    if not room.state.users:
        return []
    return view.scan(*keys.of_queue(keys.PRESENCE, room.log_id), limit=limit)


def first_present_of(rows: list[Row]) -> list[Present]:
    """The first users of a room, by up to `FIRST_ROWS` of its connections."""
    found = present_of(rows)
    if len(rows) == FIRST_ROWS and len(found) > 1:
        del found[-1]  # not all connections of the last one are known
    return found[:FIRST_USERS]


def present_of(rows: list[Row]) -> list[Present]:
    """The users in a room, in the order of names, by its connections."""
    found: dict[str, tuple[int, int]] = {}
    for key, value in rows:
        user, one = room_keys.presence_user(key), decode_connection(key, value)
        since_ms, count = found.get(user, (one.since_ms, 0))
        found[user] = min(since_ms, one.since_ms), count + (not one.due_ms)
    return [
        Present(user=user, since_ms=since_ms, connections=count)
        for user, (since_ms, count) in found.items()
    ]
