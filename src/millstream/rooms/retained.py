"""Retained values: the latest message of each type and key, as separate rows."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millstream.engine.commit import Row
from millstream.errors import CorruptionError
from millstream.format import keys, room_keys
from millstream.rooms.commands import GetRetained, ReadRetained
from millstream.rooms.lookup import FoundRoom, find_room
from millstream.rooms.model import RetainedSome, RetainedValue, RetainedValues
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View
from millstream.store.store import Store

ROWS_MAX = 1_000_000
"""Far above `RETAINED_MAX`: a scan with this limit reads all rows of a room."""

PAGE_BYTES = 64 * 1024
"""A page ends with the row that reaches this size."""

SCANNED_BYTES = 512 * 1024
SCANNED_ROWS = 64
"""Bytes and rows that a scan for a page may read, even if large rows follow small rows."""

_decode = msgspec.msgpack.Decoder(tuple[int, str, int, bytes]).decode
_encode = msgspec.msgpack.Encoder().encode


def encode_value(offset: int, sender: str, wall_ms: int, data: bytes) -> bytes:
    """Encode a retained value."""
    return _encode((offset, sender, wall_ms, data))


def decode_value(row: Row) -> RetainedValue:
    """Decode a stored row."""
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
    """Return the retained values of a room."""

    def look(view: View) -> tuple[int, list[Row]]:
        room = find_room(view, query.room)
        return (0, []) if room is None else (room.head.end, retained_rows(view, room, query.types))

    offset, rows = store.view(look)
    return RetainedValues(offset=offset, values=[decode_value(row) for row in rows])


def read_retained(store: Store, query: ReadRetained) -> RetainedSome:
    """Return a further page of a room's retained values."""

    def look(view: View) -> tuple[list[Row], bytes]:
        room = find_room(view, query.room)
        if room is None or room.log_id != query.log_id:
            return [], b""
        return retained_page(view, room, query.types, query.after)

    rows, after = store.view(look)
    return RetainedSome(values=[decode_value(row) for row in rows], more_after=after)


def retained_rows(view: View, room: FoundRoom, types: Iterable[str] | None) -> list[Row]:
    """Return the retained rows in the order of types and keys, to be decoded unlocked."""
    return [row for bounds in _ranges(room, types) for row in view.scan(*bounds, limit=ROWS_MAX)]


def retained_page(
    view: View, room: FoundRoom, types: Iterable[str] | None, after: bytes = b""
) -> tuple[list[Row], bytes]:
    """Return a page of the same rows after a key, and the last key; an empty key on the last page.

    A scan reads few rows at a time, since a row may be as large as the room's messages.
    """
    rows_max = max(1, min(SCANNED_ROWS, SCANNED_BYTES // room.settings.message_bytes_max))
    page: list[Row] = []
    size, limit = 0, 1
    for start, stop in _ranges(room, types):
        at = max(start, keys.successor(after))
        while at < stop:
            rows = view.scan(at, stop, limit=limit)
            page += rows
            sizes = [len(value) for _, value in rows]
            size += sum(sizes)
            if size >= PAGE_BYTES:
                return page, page[-1][0]
            if len(rows) < limit:
                break
            at = keys.successor(rows[-1][0])
            limit = max(1, min(rows_max, (PAGE_BYTES - size) // max(sizes)))
    return page, b""


def _ranges(room: FoundRoom, types: Iterable[str] | None) -> list[tuple[bytes, bytes]]:
    """Return the key ranges of some types' retained values, in order."""
    if not room.state.retained:
        return []
    if types is None:
        return [keys.of_queue(keys.RETAINED, room.log_id)]
    return [keys.range_of(room_keys.retained(room.log_id, kind)) for kind in sorted(set(types))]


def forget_types(tx: WriteTransaction, room: FoundRoom, types: Iterable[str]) -> tuple[int, int]:
    """Delete the retained values of some types; return their number and size."""
    count = size = 0
    for kind in types:
        rows = tx.scan(*keys.range_of(room_keys.retained(room.log_id, kind)), limit=ROWS_MAX)
        for key, value in rows:
            tx.erase(key)
            size += len(key) + len(value)
        count += len(rows)
    return count, size
