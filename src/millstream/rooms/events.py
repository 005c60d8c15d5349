"""Events for a listener of a room: messages in the order of their offsets, and gaps; pure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from millstream.format.json_text import is_json_text
from millstream.record import Extent, Record
from millstream.rooms.packed_messages import DELETED, NULL, NUMBER, ORIGIN, SENDER, TYPE

RECORD = "record"
"""The type of records that were appended to a room's log directly."""


class RoomEvent(Struct, frozen=True, kw_only=True):
    """A message of a room; or a gap: offsets that the listener does not get."""

    offset: int
    """Of a gap: the offset behind it."""
    type: str = ""
    sender: str = ""
    key: str | None = None
    data: bytes = b"null"
    """JSON."""
    timestamp: int = 0
    """When the message was sent: milliseconds since the epoch."""
    deleted: bool = False
    """Whether the retained value of the type and key was deleted."""
    origin: str = ""
    """The client that sent the message."""
    number: int | None = None
    """The client's own number of the call."""
    gap: tuple[int, int] | None = None
    """The half-open range of offsets that are gone or were replaced; None for a message."""

    @property
    def next_offset(self) -> int:
        """Return the offset after this event: pass it to `listen` to hear later events."""
        return self.offset if self.gap is not None else self.offset + 1

    def json(self) -> Any:
        """Return the decoded data."""
        return msgspec.json.decode(self.data)


def event_of(record: Record) -> RoomEvent:
    """Convert a record of a room's log into a message, even if it was appended directly."""
    headers = record.headers
    kind, sender, origin = headers.get(TYPE), headers.get(SENDER), headers.get(ORIGIN)
    number = headers.get(NUMBER)
    key = record.key
    return RoomEvent(
        offset=record.offset,
        type=kind if isinstance(kind, str) and kind else RECORD,
        sender=sender if isinstance(sender, str) else "",
        key=None if key is None else key.decode("utf-8", "backslashreplace"),
        data=NULL if record.value is None else json_of(record.value),
        timestamp=record.timestamp,
        deleted=headers.get(DELETED) is True,
        origin=origin if isinstance(origin, str) else "",
        number=number if type(number) is int else None,
    )


def json_of(value: bytes) -> bytes:
    """Encode a record's value as JSON: unchanged, as text, or as base64 of its bytes."""
    if is_json_text(value):
        return value
    try:
        return msgspec.json.encode(value.decode())
    except UnicodeDecodeError:
        return msgspec.json.encode({"base64": b64encode(value).decode()})


class Listening:
    """The position of a listener in a room's log, and its filter."""

    def __init__(self, position: int | None, *, types: Collection[str] | None, origin: str) -> None:
        self._at_end = position is None
        self.position = position or 0
        """The next offset."""
        self.log_id = 0
        """The log of the last look; 0 before the first look."""
        self._types = None if types is None else frozenset(types)
        self._origin = origin

    def look(self, extent: Extent) -> RoomEvent | None:
        """Take in the present extent of the log; return the gap of the listener, if any."""
        self.log_id = extent.id
        if self._at_end:
            self.position, self._at_end = extent.end, False
        position = self.position
        back_to = extent.position_of(position)
        if back_to < position:
            return self._go_on(back_to, (back_to, position))
        if position > extent.end:  # the room was deleted and created again
            return self._go_on(extent.start, (extent.end, position))
        if position < extent.start:
            return self._go_on(extent.start, (position, extent.start))
        return None

    def lost(self, stop: int) -> RoomEvent:
        """Return the gap that damaged records leave, up to an offset."""
        return self._go_on(stop, (self.position, stop))

    def take(self, records: Iterable[Record]) -> Iterator[RoomEvent]:
        """Yield the records that pass the listener's filter, as messages."""
        for record in records:
            self.position = record.offset + 1
            event = event_of(record)
            if event.origin and event.origin == self._origin:
                continue
            if self._types is None or event.type in self._types:
                yield event

    def _go_on(self, offset: int, gap: tuple[int, int]) -> RoomEvent:
        self.position = offset
        return RoomEvent(offset=offset, gap=gap)
