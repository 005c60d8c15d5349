"""Entering a room: what a client asks for in its address, and what it is told first."""

from __future__ import annotations

import re
import secrets
from collections.abc import Set
from urllib.parse import parse_qsl, unquote_to_bytes

from msgspec import Struct

from millstream.errors import (
    CorruptionError,
    Denied,
    InvalidInput,
    InvalidName,
    OutOfRange,
    Truncated,
)
from millstream.limits import NAME_CHARS_MAX
from millstream.log.model.names import check_name
from millstream.log.reading import reader
from millstream.log.reading.salvage import behind
from millstream.rooms.model import RoomLook
from millstream.rooms.names import TYPE_CHARS_MAX
from millstream.rooms.packing import CLIENT_CHARS_MAX, NUMBER, ORIGIN
from millstream.server.auth.access import Principal
from millstream.store.store import Store

OFFSET_MAX = 2**53
"""Offsets are numbers in JSON: beyond, browsers would round them."""

TYPES_MAX = 100
MISSING_MAX = 1_000
"""Numbers that a welcome names as missing: a client has no more frames without an answer."""

SEARCHED_BYTES = 1024 * 1024
"""Metadata that is read at once when a client's own messages are looked for."""

_CLIENT = re.compile(rf"[A-Za-z0-9_-]{{1,{CLIENT_CHARS_MAX}}}")
_NUMBER = re.compile(r"[0-9]{1,16}")
_PATH = re.compile(rb"/rooms/([^/]+)")


class RoomAsked(Struct, frozen=True, kw_only=True):
    """What follows the question mark."""

    offset: int | None = None
    """The first offset that the client has not processed; None: it comes anew."""
    client: str = ""
    user: str = ""
    types: frozenset[str] | None = None
    sent: int = 0
    """The client knows of all numbers up to this one whether they are stored."""


def room_of_path(raw_path: bytes) -> str:
    """The room that an address names, as it was sent: `%2F` is a slash within a name."""
    found = _PATH.fullmatch(raw_path)
    if found is None:
        raise InvalidName("a room's address is /rooms/NAME, with the name percent-encoded")
    try:
        text = unquote_to_bytes(found[1]).decode()
    except UnicodeDecodeError as error:
        raise InvalidName("a name in a path is percent-encoded UTF-8") from error
    return check_name(text, "room")


def parse_query(text: str, *, last_event: str = "") -> RoomAsked:
    """What a query asks for; an offset in `Last-Event-ID` is the later one, and counts."""
    given = dict(parse_qsl(text, keep_blank_values=True))
    unknown = sorted({*given} - {"offset", "client", "user", "types", "sent", "live", "seconds"})
    if unknown:
        raise InvalidInput(
            f"a room's address takes offset, client, user, types, sent and live, not {unknown[0]!r:.100}"
        )
    if _NUMBER.fullmatch(last_event):
        given["offset"] = last_event
    client = given.get("client", "")
    if client and not _CLIENT.fullmatch(client):
        raise InvalidInput(
            f"client has 1 to {CLIENT_CHARS_MAX} letters, digits, - or _, not {client!r:.100}"
        )
    user = given.get("user", "")
    return RoomAsked(
        offset=_number("offset", given["offset"]) if given.get("offset") else None,
        client=client or secrets.token_urlsafe(12),
        user=check_name(user, "user") if user else "",
        types=_types(given["types"]) if given.get("types") else None,
        sent=_number("sent", given["sent"]) if given.get("sent") else 0,
    )


def _number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > OFFSET_MAX:
        raise InvalidInput(f"{name} is a whole number up to 2^53, not {text!r:.100}")
    return int(text)


def _types(text: str) -> frozenset[str]:
    found = frozenset(part for part in text.split(",") if part)
    if len(found) > TYPES_MAX or any(len(one) > TYPE_CHARS_MAX for one in found):
        raise InvalidInput(
            f"types names up to {TYPES_MAX} types of up to {TYPE_CHARS_MAX} characters"
        )
    return found


def user_of(principal: Principal, asked: RoomAsked, room: str) -> str:
    """Whom a client is shown as: whom its ticket is for, or else whom it says."""
    if principal.user and asked.user not in ("", principal.user):
        raise Denied(
            f"this ticket is for the user {principal.user!r}, and enters as no other; "
            f"not as {asked.user!r}",
            noun="room",
            action="read",
            name=room,
        )
    return principal.user or asked.user


def check_offset(asked: RoomAsked, look: RoomLook, room: str) -> None:
    """Refuse to go on from an offset that the room has not come to: it is another room."""
    if asked.offset is not None and asked.offset > look.offset:
        raise OutOfRange(
            f"room {room!r:.{NAME_CHARS_MAX}} ends at {look.offset}, not behind {asked.offset}: it "
            "was deleted, and made anew; join without an offset",
            position=asked.offset,
            end=look.offset,
        )


def missing_of(found: Set[int], known: int) -> list[int]:
    """Which numbers above what a client knows, and below the highest found, are not stored.

    They were refused, and the client may not have been told. Only the last ones are named.
    """
    last = max(found, default=0)
    return [one for one in range(max(known + 1, last - MISSING_MAX), last) if one not in found]


def find_sent(store: Store, log: str, client: str, *, start: int, stop: int) -> set[int]:
    """The numbers of a client's frames that are stored in [start, stop)."""
    found: set[int] = set()
    while start < stop:
        try:
            blocks = reader.read_blocks(
                store, log, start=start, stop=stop, bytes_max=SEARCHED_BYTES, values=False
            )
        except Truncated as error:
            start = max(start + 1, int(error.data["start"]))
            continue
        except CorruptionError as error:
            start = behind(error, start, stop)
            continue
        if not blocks:
            break
        for block in blocks:
            for headers in block.headers():
                number = headers.get(NUMBER)
                if headers.get(ORIGIN) == client and type(number) is int:
                    found.add(number)
        start = blocks[-1].offsets.stop
    return found
