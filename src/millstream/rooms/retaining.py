"""Retained values: the latest message of each type and key, as rows of their own."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millstream.engine.commit import Row
from millstream.errors import CorruptionError
from millstream.format import keys, room_keys
from millstream.rooms.commands import GetRetained, ReadRetained
from millstream.rooms.finding import FoundRoom, find_room
from millstream.rooms.model import RetainedSome, RetainedValue, RetainedValues
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View
from millstream.store.store import Store

ROWS_MAX = 1_000_000
"""More than a room can retain."""

PAGE_BYTES = 64 * 1024
"""A page ends behind the row that makes it so large."""

SCANNED_BYTES = 512 * 1024
SCANNED_ROWS = 64
"""Bytes and rows that one scan for a page may read, also where large rows follow small ones."""

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


def read_retained(store: Store, query: ReadRetained) -> RetainedSome:
    """More of what a room has kept."""

    def look(view: View) -> tuple[list[Row], bytes]:
        room = find_room(view, query.room)
        if room is None or room.log_id != query.log_id:
            return [], b""
        return retained_page(view, room, query.types, query.after)

    rows, after = store.view(look)
    return RetainedSome(values=[decode_value(row) for row in rows], more_after=after)


def retained_rows(view: View, room: FoundRoom, types: Iterable[str] | None) -> list[Row]:
    """What a room retains, in the order of types and keys; it is decoded without a lock."""
    return [row for one in _ranges(room, types) for row in view.scan(*one, limit=ROWS_MAX)]


def retained_page(
    view: View, room: FoundRoom, types: Iterable[str] | None, after: bytes = b""
) -> tuple[list[Row], bytes]:
    """Some of the same, behind a key, and the key behind which to go on; empty: that was all.

    Rows are asked for a few at a time, since they may be as large as the room's messages.
    """
    most = max(1, min(SCANNED_ROWS, SCANNED_BYTES // room.settings.message_bytes_max))
    found: list[Row] = []
    size, limit = 0, 1
    for start, stop in _ranges(room, types):
        at = max(start, after + b"\x00")
        while at < stop:
            rows = view.scan(at, stop, limit=limit)
            found += rows
            sizes = [len(value) for _, value in rows]
            size += sum(sizes)
            if size >= PAGE_BYTES:
                return found, found[-1][0]
            if len(rows) < limit:
                break
            at = rows[-1][0] + b"\x00"
            limit = max(1, min(most, (PAGE_BYTES - size) // max(sizes)))
    return found, b""


def _ranges(room: FoundRoom, types: Iterable[str] | None) -> list[tuple[bytes, bytes]]:
    """Where the retained values of some types lie, in order."""
    if not room.state.retained:
        return []
    if types is None:
        return [keys.of_queue(keys.RETAINED, room.log_id)]
    return [keys.range_of(room_keys.retained(room.log_id, kind)) for kind in sorted(set(types))]


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
