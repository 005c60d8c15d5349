"""Frames of rooms: JSON texts, and their bytes on a WebSocket or in a stream of events; pure.

A server's WebSocket frames are not masked, so the same bytes go to every listener. `docs/PROTOCOL.md`
has examples of every frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from millstream.record import Record
from millstream.rooms.events import json_of
from millstream.rooms.model import Present, RetainedValue, RoomLook, RoomMessage
from millstream.rooms.packing import DELETED, NULL, NUMBER, ORIGIN, SENDER, TYPE
from millstream.rooms.settings import RoomSettings
from millstream.server.rooms.outbox import Shown

UNTYPED = "record"
"""The type of a record that was appended to the room's log without one."""

DATA = b"data: "
END_OF_EVENT = b"\n\n"
"""Around the text of a server-sent event."""

_encode = msgspec.json.Encoder().encode


class MessageShown(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message as listeners get it."""

    offset: int
    type: str
    sender: str = field(name="from", default="")
    key: str | None = None
    data: Raw
    time: int
    """Milliseconds since the epoch."""
    deleted: bool = False


class PresentShown(Struct, frozen=True):
    """A user who is there."""

    user: str
    since: int
    """Milliseconds since the epoch."""
    connections: int


class Welcome(Struct, frozen=True, kw_only=True):
    """The first thing that a listener is told."""

    room: str
    connection: str
    client: str
    user: str
    generation: int
    """What the client sends by requests carries it; what it sends over this connection has it."""
    offset: int
    """Messages from here on follow."""
    start: int
    """The first offset that the room remembers: what a client sent before cannot be found stored."""
    settings: RoomSettings
    users: int
    """How many users are there, as of `as_of`."""
    presence: list[PresentShown]
    """The first of them, in the order of names; the others can be asked for."""
    as_of: int
    """What messages from here on tell of users, and of retained values, comes after these."""
    sent: int | None
    """The highest number of this client's frames that was found stored; None: none was."""
    missing: list[int]
    """Lower ones that were not: they were refused."""


class SentMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message as clients send it."""

    type: str
    data: Raw | UnsetType = UNSET
    key: str | None = None
    deleted: bool = False

    def message(self) -> RoomMessage:
        """The same, on its way into the room."""
        data = b"null" if isinstance(self.data, UnsetType) else bytes(self.data)
        return RoomMessage(self.type, data, self.key, self.deleted)


class Heard(Struct, frozen=True, forbid_unknown_fields=True):
    """A frame of a client: messages to send, or a ping."""

    send: list[SentMessage] | UnsetType = UNSET
    n: int | UnsetType = UNSET
    ping: Any = UNSET


decode_heard = msgspec.json.Decoder(Heard).decode
PONG = b'{"pong":1}'


def shown(record: Record) -> Shown:
    """A record of the room's log, as listeners get it; one that was not sent as a message, too."""
    headers = record.headers
    kind, sender, origin = headers.get(TYPE), headers.get(SENDER), headers.get(ORIGIN)
    key = record.key
    message = MessageShown(
        offset=record.offset,
        type=kind if isinstance(kind, str) else UNTYPED,
        sender=sender if isinstance(sender, str) else "",
        key=None if key is None else key.decode("utf-8", "replace"),
        data=Raw(NULL if record.value is None else json_of(record.value)),
        time=record.timestamp,
        deleted=headers.get(DELETED) is True,
    )
    who = origin if isinstance(origin, str) and origin else message.sender
    return Shown(record.offset, message.type, who, _encode(message))


def origin_of(record: Record) -> str:
    """The client that sent a record; empty if none did."""
    origin = record.headers.get(ORIGIN)
    return origin if isinstance(origin, str) else ""


def number_of(record: Record) -> int | None:
    """The sender's number of the frame that a record came in."""
    number = record.headers.get(NUMBER)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def retained_shown(values: Iterable[RetainedValue]) -> list[MessageShown]:
    """Retained values as messages."""
    return [
        MessageShown(
            offset=one.offset,
            type=one.type,
            sender=one.sender,
            key=one.key,
            data=Raw(json_of(one.data)),
            time=one.timestamp,
        )
        for one in values
    ]


def presence_shown(present: Iterable[Present]) -> list[PresentShown]:
    """Who is there."""
    return [PresentShown(one.user, one.since_ms, one.connections) for one in present]


def messages_frame(messages: Sequence[Shown], offset: int) -> bytes:
    """Messages, and where to go on behind them."""
    return b'{"messages":[%b],"offset":%d}' % (b",".join([one.json for one in messages]), offset)


def welcome_frame(welcome: Welcome) -> bytes:
    """The first frame; retained values may be added for a listener that has none yet."""
    return _encode({"welcome": welcome})


def gap_frame(first: int, stop: int, look: RoomLook) -> bytes:
    """What this listener will not get, and who is there; what is retained now is added."""
    return _encode(
        {
            "gap": {"from": first, "to": stop},
            "offset": stop,
            "users": look.users,
            "presence": presence_shown(look.presence),
            "as_of": look.offset,
        }
    )


def begin_retained(frame: bytes) -> bytes:
    """A frame up to where its retained values stand; `END_RETAINED` ends it behind them."""
    return frame[:-1] + b',"retained":['


END_RETAINED = b"]}"


def retained_part(values: Iterable[RetainedValue]) -> bytes:
    """Some retained values, with commas between."""
    return _encode(retained_shown(values))[1:-1]


def sent_frame(number: int | None, offset: int) -> bytes:
    """A frame of the client is stored, from this offset on."""
    return _encode({"sent": number, "offset": offset})


def error_frame(problem: Any, number: int | None) -> bytes:
    """A frame of the client was refused."""
    found: dict[str, Any] = {"error": problem}
    if number is not None:
        found["n"] = number
    return _encode(found)


def on_socket(text: bytes) -> bytes:
    """A text as one unmasked WebSocket frame."""
    size = len(text)
    if size < 126:
        return bytes((0x81, size)) + text
    if size < 65_536:
        return b"\x81\x7e" + size.to_bytes(2, "big") + text
    return b"\x81\x7f" + size.to_bytes(8, "big") + text


def fragment(text: bytes, *, is_first: bool, is_last: bool) -> bytes:
    """A part of a text as one unmasked frame of a fragmented WebSocket message."""
    head = bytes((0x01 * is_first | 0x80 * is_last,))
    return head + on_socket(text)[1:]


def in_stream(text: bytes, offset: int | None) -> bytes:
    """A text as one server-sent event; its id is the offset to go on from."""
    line = text.replace(b"\n", b" ").replace(b"\r", b" ")  # between JSON's tokens only
    name = b"" if offset is None else b"id: %d\n" % offset
    return name + DATA + line + END_OF_EVENT
