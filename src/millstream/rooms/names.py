"""What the names in a room may be, and where its messages lie."""

from __future__ import annotations

from millstream.errors import InvalidInput, InvalidName, TooLarge
from millstream.limits import NAME_CHARS_MAX
from millstream.log.model.names import ROOM, check_name, check_text

ROOM_NAME_CHARS_MAX = NAME_CHARS_MAX - len(ROOM)
"""Characters in a room's name: its log's name begins with `room:`, and is a name like any other."""

TYPE_CHARS_MAX = 64
KEY_BYTES_MAX = 1_024
"""Bytes in the key of a message: it is part of the key of a row."""

JOINED, LEFT = "joined", "left"
RESERVED_TYPES = frozenset((JOINED, LEFT))
"""Types of messages that the store alone writes."""

INSTANCE_CHARS_MAX = 128
WATERMARK = "instance:"
"""What the names of the cursors begin with by which instances note how far they have come."""


def log_of(room: str) -> str:
    """The log that holds a room's messages."""
    if len(check_name(room, "room")) > ROOM_NAME_CHARS_MAX:
        raise InvalidName(
            f"a room name has 1 to {ROOM_NAME_CHARS_MAX} characters, not {len(room)}",
            name=room[:300],
        )
    return f"{ROOM}{room}"


def room_of(log: str) -> str:
    """The room whose messages a log holds."""
    return log.removeprefix(ROOM)


def watermark_of(instance: str, generation: int) -> str:
    """Name the cursor by which one generation of an instance notes its progress in a room."""
    return f"{WATERMARK}{instance}#{generation}"


def watermark_parts(cursor: str) -> tuple[str, int]:
    """Return the instance and the generation of a watermark; generation 0 if it names none."""
    instance, _, generation = cursor.removeprefix(WATERMARK).rpartition("#")
    return (instance, int(generation)) if generation.isdecimal() else (cursor, 0)


def check_type(kind: str) -> str:
    """The type of a message: 1 to 64 characters, and none of the store's own."""
    if not 1 <= len(check_text("the type of a message", kind)) <= TYPE_CHARS_MAX:
        raise InvalidInput(
            f"the type of a message is text of 1 to {TYPE_CHARS_MAX} characters, not {kind!r:.100}"
        )
    if kind in RESERVED_TYPES:
        raise InvalidInput(
            f"messages of the type {kind!r} are written by the store alone; choose another type"
        )
    return check_name(kind, "message type")


def check_key(key: str) -> bytes:
    """The key of a message, as bytes: 1 to 1,024 of them."""
    data = check_text("the key of a message", key).encode()
    if not data:
        raise InvalidInput("the key of a message is text that is not empty, or None for none")
    if len(data) > KEY_BYTES_MAX:
        raise TooLarge(
            f"the key of a message has {len(data):,} bytes; the limit is {KEY_BYTES_MAX:,}",
            size=len(data),
            limit=KEY_BYTES_MAX,
        )
    return data


def check_instance(name: str) -> str:
    """The name of an instance: 1 to 128 characters, none of them a control character."""
    if len(check_name(name, "instance")) > INSTANCE_CHARS_MAX:
        raise InvalidName(
            f"an instance name has 1 to {INSTANCE_CHARS_MAX} characters, not {len(name)}",
            name=name[:300],
        )
    return name
