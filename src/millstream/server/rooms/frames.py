"""Frames of rooms: JSON texts, and their bytes on a WebSocket or in an event stream; pure.

The server does not mask WebSocket frames, so that all listeners can get the same bytes.
`docs/PROTOCOL.md` has an example of every frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from millstream.record import Record
from millstream.rooms.events import json_of
from millstream.rooms.model import Present, RetainedValue, RoomLook, RoomMessage
from millstream.rooms.packed_messages import DELETED, NULL, NUMBER, ORIGIN, SENDER, TYPE
from millstream.rooms.settings import RoomSettings
from millstream.server.rooms.outbox import Shown

UNTYPED = "record"
"""The type of a record that was appended to the room's log without a type."""

DATA = b"data: "
END_OF_EVENT = b"\n\n"
"""The end of a server-sent event."""

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
    """A user who is present in the room."""

    user: str
    since: int
    """Milliseconds since the epoch."""
    connections: int
    state: Raw | UnsetType = UNSET
    """The state that the user has set; left out without a state."""


class Welcome(Struct, frozen=True, kw_only=True):
    """The first frame of a listener."""

    room: str
    connection: str
    client: str
    user: str
    generation: int
    """The room's generation. An HTTP request that sends messages for the client must carry this
    number; frames on the connection need not."""
    offset: int
    """The offset of the next message that the listener gets."""
    start: int
    """The first offset that the room still has. Frames of this client below it cannot be found, so
    `sent` and `missing` do not count them."""
    settings: RoomSettings
    users: int
    """How many users are present, as of `as_of`."""
    presence: list[PresentShown]
    """The first users in the order of names; `GET /v1/rooms/{room}/presence` lists all."""
    as_of: int
    """`users`, `presence` and the retained values include all messages below this offset."""
    sent: int | None
    """The highest number of this client's frames that is stored; None if no frame is."""
    missing: list[int]
    """Lower numbers whose frames are not stored: they were refused."""


class SentMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message as clients send it."""

    type: str
    data: Raw | UnsetType = UNSET
    key: str | None = None
    deleted: bool = False

    def message(self) -> RoomMessage:
        """Return the message in the form that the room's commands take."""
        data = b"null" if isinstance(self.data, UnsetType) else bytes(self.data)
        return RoomMessage(self.type, data, self.key, self.deleted)


class ClientFrame(Struct, frozen=True, forbid_unknown_fields=True):
    """A frame of a client: messages to send, the state of its presence, or a ping."""

    send: list[SentMessage] | UnsetType = UNSET
    n: int | UnsetType = UNSET
    ping: Any = UNSET
    presence: Raw | UnsetType = UNSET


decode_client_frame = msgspec.json.Decoder(ClientFrame).decode
PONG = b'{"pong":1}'


def shown(record: Record) -> Shown:
    """Encode a record of the room's log as listeners get it, also a record without a type."""
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
    origin_or_user = origin if isinstance(origin, str) and origin else message.sender
    return Shown(record.offset, message.type, origin_or_user, _encode(message))


def origin_of(record: Record) -> str:
    """Return the client that sent a record; empty if the record carries no client."""
    origin = record.headers.get(ORIGIN)
    return origin if isinstance(origin, str) else ""


def number_of(record: Record) -> int | None:
    """Return the number of the frame that carried a record, as its client counted."""
    number = record.headers.get(NUMBER)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def retained_shown(values: Iterable[RetainedValue]) -> list[MessageShown]:
    """Return retained values as messages."""
    return [
        MessageShown(
            offset=value.offset,
            type=value.type,
            sender=value.sender,
            key=value.key,
            data=Raw(json_of(value.data)),
            time=value.timestamp,
        )
        for value in values
    ]


def presence_shown(present: Iterable[Present]) -> list[PresentShown]:
    """Return the present users as listeners get them."""
    return [
        PresentShown(
            user.user,
            user.since_ms,
            user.connections,
            Raw(user.state_json) if user.state_json else UNSET,
        )
        for user in present
    ]


def messages_frame(messages: Sequence[Shown], offset: int) -> bytes:
    """Encode messages, with the offset from which to resume after them."""
    encoded = b",".join([message.json for message in messages])
    return b'{"messages":[%b],"offset":%d}' % (encoded, offset)


def welcome_frame(welcome: Welcome) -> bytes:
    """Encode the first frame; `begin_retained` adds retained values for a new listener."""
    return _encode({"welcome": welcome})


def gap_frame(first: int, stop: int, look: RoomLook) -> bytes:
    """Encode a gap: the lost offsets and the present users; `begin_retained` adds retained
    values."""
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
    """Open the list of retained values at the end of a frame; `END_RETAINED` closes list and
    frame."""
    return frame[:-1] + b',"retained":['


END_RETAINED = b"]}"


def retained_part(values: Iterable[RetainedValue]) -> bytes:
    """Encode retained values, separated by commas."""
    return _encode(retained_shown(values))[1:-1]


def sent_frame(number: int | None, offset: int) -> bytes:
    """Encode the confirmation of a client's frame, with the offset of its first message."""
    return _encode({"sent": number, "offset": offset})


def error_frame(problem: Any, number: int | None, *, is_of_presence: bool = False) -> bytes:
    """Encode the refusal of a client's frame."""
    frame: dict[str, Any] = {"error": problem}
    if is_of_presence:
        frame["presence"] = True
    if number is not None:
        frame["n"] = number
    return _encode(frame)


def on_socket(text: bytes) -> bytes:
    """Return a text as one unmasked WebSocket frame."""
    size = len(text)
    if size < 126:
        return bytes((0x81, size)) + text
    if size < 65_536:
        return b"\x81\x7e" + size.to_bytes(2, "big") + text
    return b"\x81\x7f" + size.to_bytes(8, "big") + text


def fragment(text: bytes, *, is_first: bool, is_last: bool) -> bytes:
    """Return a part of a text as one unmasked frame of a fragmented WebSocket message."""
    head = bytes((0x01 * is_first | 0x80 * is_last,))
    return head + on_socket(text)[1:]


def in_stream(text: bytes, offset: int | None) -> bytes:
    """Return a text as one server-sent event; its id is the offset from which to resume."""
    # JSON has line breaks between its tokens only, never within a string: a space is equal.
    line = text.replace(b"\n", b" ").replace(b"\r", b" ")
    name = b"" if offset is None else b"id: %d\n" % offset
    return name + DATA + line + END_OF_EVENT
