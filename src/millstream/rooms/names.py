"""The names in a room: their rules, and the log of a room."""

from __future__ import annotations

from millstream.errors import InvalidInput, InvalidName, TooLarge
from millstream.limits import NAME_CHARS_MAX
from millstream.log.model.names import ROOM, check_name, check_text

ROOM_NAME_CHARS_MAX = NAME_CHARS_MAX - len(ROOM)
"""Characters in a room's name: its log's name begins with `room:`, and has the limit of all names.
"""

TYPE_CHARS_MAX = 64
KEY_BYTES_MAX = 1_024
"""Bytes in the key of a message: the key is part of a row's key."""

JOINED, LEFT, PRESENT = "joined", "left", "present"
RESERVED_TYPES = frozenset((JOINED, LEFT, PRESENT))
"""Types of messages that only the store writes."""

HISTORY_MAX = 1_000
"""Messages that a listener may ask for when it joins."""

INSTANCE_CHARS_MAX = 128
WATERMARK = "instance:"
"""The prefix of the cursors in which instances store their progress."""


def log_of(room: str) -> str:
    """Return the log of a room's messages."""
    if len(check_name(room, "room")) > ROOM_NAME_CHARS_MAX:
        raise InvalidName(
            f"a room name has 1 to {ROOM_NAME_CHARS_MAX} characters, not {len(room)}",
            name=room[:300],
        )
    return f"{ROOM}{room}"


def room_of(log: str) -> str:
    """Return the room of a log."""
    return log.removeprefix(ROOM)


def watermark_of(instance: str, generation: int) -> str:
    """Name the cursor by which one generation of an instance notes its progress in a room."""
    return f"{WATERMARK}{instance}#{generation}"


def watermark_parts(cursor: str) -> tuple[str, int]:
    """Return the instance and the generation of a watermark; without a generation, return 0."""
    instance, _, generation = cursor.removeprefix(WATERMARK).rpartition("#")
    return (instance, int(generation)) if generation.isdecimal() else (cursor, 0)


def check_type(kind: str) -> str:
    """Check the type of a message: 1 to 64 characters, and no type of the store's own."""
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
    """Check the key of a message, and return its bytes, 1 to 1,024."""
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
    """Check the name of an instance: 1 to 128 characters without control characters."""
    if len(check_name(name, "instance")) > INSTANCE_CHARS_MAX:
        raise InvalidName(
            f"an instance name has 1 to {INSTANCE_CHARS_MAX} characters, not {len(name)}",
            name=name[:300],
        )
    return name
