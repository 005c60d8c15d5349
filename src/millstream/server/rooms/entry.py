"""Entering a room: parse the address, check user and offset, find the client's stored frames."""

from __future__ import annotations

import re
import secrets
from collections.abc import Set
from urllib.parse import parse_qsl, unquote_to_bytes

from msgspec import Struct

from millstream.errors import (
    Denied,
    InvalidInput,
    InvalidName,
    OutOfRange,
)
from millstream.limits import NAME_CHARS_MAX
from millstream.log.model.names import check_name
from millstream.log.reading.salvage import readable_headers
from millstream.rooms.history import check_history
from millstream.rooms.model import RoomLook
from millstream.rooms.names import HISTORY_MAX, TYPE_CHARS_MAX
from millstream.rooms.packed_messages import CLIENT_CHARS_MAX, NUMBER, ORIGIN
from millstream.server.auth.access import Principal
from millstream.store.store import Store

OFFSET_MAX = 2**53
"""Largest offset in an address: browsers round larger numbers in JSON."""

TYPES_MAX = 100
MISSING_MAX = 1_000
"""Most missing frame numbers in a welcome; a client has at most this many unanswered frames."""

_FIELDS = frozenset(
    ("offset", "since", "history", "client", "user", "types", "sent", "live", "seconds")
)
_CLIENT = re.compile(rf"[A-Za-z0-9_-]{{1,{CLIENT_CHARS_MAX}}}")
_NUMBER = re.compile(r"[0-9]{1,16}")
_PATH = re.compile(rb"/rooms/([^/]+)")


class EntryRequest(Struct, frozen=True, kw_only=True):
    """The query of a room's address, parsed."""

    offset: int | None = None
    """The first offset that the client has not processed. None: the client did not listen
    before."""
    since: int | None = None
    """The first offset that a client wants, though it did not listen before."""
    history: int = 0
    """How many of the last messages a client wants that did not listen before."""
    client: str = ""
    user: str = ""
    types: frozenset[str] | None = None
    sent: int = 0
    """The client knows the outcome of every frame up to this number."""


def room_of_path(raw_path: bytes) -> str:
    """Return the room's name from the raw path. `%2F` is a slash within a name."""
    match = _PATH.fullmatch(raw_path)
    if match is None:
        raise InvalidName("a room's address is /rooms/NAME, with the name percent-encoded")
    try:
        text = unquote_to_bytes(match[1]).decode()
    except UnicodeDecodeError as error:
        raise InvalidName("a name in a path is percent-encoded UTF-8") from error
    return check_name(text, "room")


def parse_query(text: str, *, last_event: str = "") -> EntryRequest:
    """Parse the query. An offset in `Last-Event-ID` is newer than the query's, and wins."""
    query = dict(parse_qsl(text, keep_blank_values=True))
    unknown = sorted({*query} - _FIELDS)
    if unknown:
        raise InvalidInput(
            "a room's address takes offset, since, history, client, user, types, sent and live, "
            f"not {unknown[0]!r:.100}"
        )
    if _NUMBER.fullmatch(last_event):
        query["offset"] = last_event
        query.pop("since", None)  # an event came already: the client resumes
        query.pop("history", None)
    starts = [name for name in ("offset", "since", "history") if query.get(name)]
    if len(starts) > 1:
        raise InvalidInput(
            f"a client begins at one place: give {starts[0]} or {starts[1]}, not both"
        )
    client = query.get("client", "")
    if client and not _CLIENT.fullmatch(client):
        raise InvalidInput(
            f"client has 1 to {CLIENT_CHARS_MAX} letters, digits, - or _, not {client!r:.100}"
        )
    user = query.get("user", "")
    return EntryRequest(
        offset=_number("offset", query["offset"]) if query.get("offset") else None,
        since=_number("since", query["since"]) if query.get("since") else None,
        history=_history(query["history"]) if query.get("history") else 0,
        client=client or secrets.token_urlsafe(12),
        user=check_name(user, "user") if user else "",
        types=_types(query["types"]) if query.get("types") else None,
        sent=_number("sent", query["sent"]) if query.get("sent") else 0,
    )


def _number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > OFFSET_MAX:
        raise InvalidInput(f"{name} is a whole number up to 2^53, not {text!r:.100}")
    return int(text)


def _history(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise InvalidInput(
            f"history is a number of messages from 0 to {HISTORY_MAX:,}, not {text!r:.100}"
        )
    return check_history(int(text))


def _types(text: str) -> frozenset[str]:
    types = frozenset(name for name in text.split(",") if name)
    if len(types) > TYPES_MAX or any(len(name) > TYPE_CHARS_MAX for name in types):
        raise InvalidInput(
            f"types names up to {TYPES_MAX} types of up to {TYPE_CHARS_MAX} characters"
        )
    return types


def user_of(principal: Principal, request: EntryRequest, room: str) -> str:
    """Return the user under which a client is shown: the ticket's user, else the user in the
    query."""
    if principal.user and request.user not in ("", principal.user):
        raise Denied(
            f"this ticket is for the user {principal.user!r} and cannot enter as another user, "
            f"here {request.user!r}",
            noun="room",
            action="read",
            name=room,
        )
    return principal.user or request.user


def check_offset(request: EntryRequest, look: RoomLook, room: str) -> None:
    """Refuse an offset beyond the room's end: the client listened to an earlier room of that
    name."""
    offset = request.since if request.offset is None else request.offset
    if offset is not None and offset > look.offset:
        raise OutOfRange(
            f"room {room!r:.{NAME_CHARS_MAX}} ends at {look.offset}, before {offset}: the "
            "room was deleted and created again; join without an offset",
            position=offset,
            end=look.offset,
        )


def missing_of(stored: Set[int], last_known: int) -> list[int]:
    """Return the frame numbers between the last one that a client knows and the highest stored one
    that are not stored.

    These frames were refused, and the refusal may not have reached the client. At most
    `MISSING_MAX` numbers are returned, the highest ones.
    """
    last = max(stored, default=0)
    first = max(last_known + 1, last - MISSING_MAX)
    return [number for number in range(first, last) if number not in stored]


def find_sent(store: Store, log: str, client: str, *, start: int, stop: int) -> set[int]:
    """Return the numbers of a client's frames whose messages are stored in [start, stop)."""
    numbers: set[int] = set()
    for _, headers in readable_headers(store, log, start, stop):
        number = headers.get(NUMBER)
        if headers.get(ORIGIN) == client and type(number) is int:
            numbers.add(number)
    return numbers
