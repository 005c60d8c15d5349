"""Retained values: the latest message of each type and key, as rows of their own."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millstream.errors import CorruptionError
from millstream.format import keys, room_keys
from millstream.rooms.commands import GetRetained
from millstream.rooms.finding import FoundRoom, find_room
from millstream.rooms.model import RetainedValue, RetainedValues
from millstream.store.commit import Row
from millstream.store.rows import View
from millstream.store.store import Store
from millstream.store.transaction import WriteTransaction

ROWS_MAX = 1_000_000
"""More than a room can retain."""

_decode = msgspec.msgpack.Decoder(tuple[int, str, int, bytes]).decode
_encode = msgspec.msgpack.Encoder().encode


def encode_value(offset: int, sender: str, wall_ms: int, data: bytes) -> bytes:
    """A retained value as it is stored."""
    return _encode((offset, sender, wall_ms, data))


def decode_value(row: Row) -> RetainedValue:
    """A stored row as a retained value."""
    kind, key = room_keys.retained_parts(row[0])
    try:
        offset, sender, timestamp, data = _decode(row[1])
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"a retained value: {error}", what="retained", where=row[0].hex()
        ) from error
    return RetainedValue(
        type=kind, key=key or None, offset=offset, sender=sender, timestamp=timestamp, data=data
    )


def get_retained(store: Store, query: GetRetained) -> RetainedValues:
    """What a room has kept."""

    def look(view: View) -> tuple[int, list[Row]]:
        room = find_room(view, query.room)
        return (0, []) if room is None else (room.head.end, retained_rows(view, room, query.types))

    offset, rows = store.view(look)
    return RetainedValues(offset=offset, values=[decode_value(row) for row in rows])


def retained_rows(view: View, room: FoundRoom, types: Iterable[str] | None) -> list[Row]:
    """What a room retains, in the order of types and keys; it is decoded without a lock."""
    if not room.state.retained:
        return []
    if types is None:
        ranges = [keys.of_queue(keys.RETAINED, room.log_id)]
    else:
        ranges = [
            keys.range_of(room_keys.retained(room.log_id, kind)) for kind in sorted(set(types))
        ]
    return [row for one in ranges for row in view.scan(*one, limit=ROWS_MAX)]


def forget_types(tx: WriteTransaction, room: FoundRoom, types: Iterable[str]) -> tuple[int, int]:
    """Drop what is retained of some types; answers how many values, and how many bytes."""
    count = size = 0
    for kind in types:
        rows = tx.scan(*keys.range_of(room_keys.retained(room.log_id, kind)), limit=ROWS_MAX)
        for key, value in rows:
            tx.erase(key)
            size += len(key) + len(value)
        count += len(rows)
    return count, size
