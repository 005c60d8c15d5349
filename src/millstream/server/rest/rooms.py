"""Rooms over HTTP: what there is, how each stands, sending, and listening by server-sent events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from millstream.errors import InvalidInput, NotFound
from millstream.rooms import commands as c
from millstream.rooms.model import RoomInfo, RoomMessage, RoomTicket
from millstream.rooms.names import TYPE_CHARS_MAX
from millstream.rooms.packing import CLIENT_CHARS_MAX
from millstream.rooms.settings import RoomSettings
from millstream.server.auth.need import Need
from millstream.server.core import RoomStream
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.logs import Existed, Page, checked_after

EVENTS = "text/event-stream"
MESSAGES_MAX = 10_000
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class RoomSettingsBody(RoomSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a room is; what is left out has its default. Durations are seconds."""


class RoomShown(RoomInfo, frozen=True, kw_only=True):
    """How a room stands."""

    settings: RoomSettingsBody


class RoomPage(Struct, kw_only=True):
    """Rooms in the order of their names."""

    rooms: list[RoomShown]
    after: str | None
    """Ask with this for the next page; null: there is none."""


class MessageBody(Struct, forbid_unknown_fields=True, frozen=True):
    """A message to send."""

    type: Annotated[str, Meta(min_length=1, max_length=TYPE_CHARS_MAX)]
    data: Any = None
    """Any JSON value."""
    key: str | None = None
    deleted: bool = False
    """Whether the retained value of the type and key is to be forgotten."""


class _MessageRaw(Struct, frozen=True):
    type: str
    data: Raw | UnsetType = UNSET
    key: str | None = None
    deleted: bool = False


class _MessagesRaw(Struct, frozen=True):
    messages: list[_MessageRaw]


class MessagesBody(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Messages for all listeners of a room; they are stored in one commit."""

    messages: Annotated[list[MessageBody], Meta(min_length=1, max_length=MESSAGES_MAX)]
    user: Annotated[str, Meta(max_length=255)] = ""
    """The user that listeners are shown."""
    client: Annotated[str, Meta(max_length=CLIENT_CHARS_MAX)] = ""
    """The client that sends: it does not hear the messages itself."""
    n: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """The client's number of this call, by which it finds out whether it was carried out."""
    generation: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Of the client's `welcome`: the call is refused with 409 if the client came back since."""


class SentOffset(Struct, frozen=True):
    """Where messages were stored."""

    offset: int
    """Of the first."""


class RoomTicketBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Whom a ticket is for."""

    user: Annotated[str, Meta(min_length=1, max_length=255)]
    can: Literal["read", "write"] = "write"
    """Whether it may only listen, or also send."""
    seconds: float = 60.0


class RetainedQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What may follow the question mark of a question for retained values."""

    types: str | None = None
    """Types, separated by commas; left out: all."""


class RetainedShown(Struct, frozen=True):
    """A retained value: the latest message of its type and key."""

    type: str
    key: str | None
    offset: int
    sender: str = field(name="from")
    """The user who sent it; empty if none is known."""
    time: int
    """When it was sent: milliseconds since the epoch."""
    data: Any


class RetainedPage(Struct, frozen=True):
    """What a room has kept, as of an offset: messages from there on come after it."""

    offset: int
    retained: list[RetainedShown]


class PresentUser(Struct, frozen=True):
    """A user who is in a room."""

    user: str
    since: int
    """Milliseconds since the epoch."""
    connections: int


class PresencePage(Struct, frozen=True):
    """The users in a room, as of an offset: what messages from there on tell comes after it."""

    offset: int
    presence: list[PresentUser]
    """In the order of names."""


class ListenQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What may follow the question mark of a room's address."""

    live: Literal["sse"]
    """Server-sent events; a WebSocket needs none of it."""
    offset: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """The first offset that the client has not processed; left out: it comes anew."""
    client: Annotated[str, Meta(max_length=CLIENT_CHARS_MAX)] = ""
    """An id that the client keeps: it does not hear what it sends."""
    user: Annotated[str, Meta(max_length=255)] = ""
    """Shown to others; without one, it listens unseen."""
    types: str = ""
    """Types, separated by commas; left out: all."""
    sent: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """The client knows of all numbers up to this one whether they are stored."""
    seconds: float | None = None
    """End after so long; left out, it goes on."""


endpoint = Endpoints("rooms")


@endpoint("GET /rooms")
async def list_rooms(ask: Ask, query: Page) -> RoomPage:
    """List rooms in the order of their names."""
    found = await ask.execute(c.ListRooms(checked_after(query.after), query.limit))
    after = found[-1].name if len(found) == query.limit else None
    return RoomPage(rooms=[_shown(info) for info in found], after=after)


@endpoint("PUT /rooms/{room}/settings", body_optional=True, errors=(409,))
async def specify_room(ask: Ask, room: str, body: RoomSettingsBody) -> RoomShown:
    """Make a room, or make it what the body says.

    The body is all of its settings: what it does not name has its default. What is retained of types
    that are retained no longer is forgotten.
    """
    settings = RoomSettings(**msgspec.structs.asdict(body))
    settings.check()
    await ask.execute(c.SpecifyRoom(room, settings))
    return await get_room(ask, room)


@endpoint("GET /rooms/{room}/info", errors=(404,))
async def get_room(ask: Ask, room: str) -> RoomShown:
    """How a room stands: its settings and its counts."""
    info = await ask.execute(c.DescribeRoom(room))
    if info is None:
        raise NotFound(f"there is no room {room!r}; the first message makes it", name=room)
    return _shown(info)


def _shown(info: RoomInfo) -> RoomShown:
    return msgspec.convert(info, RoomShown, from_attributes=True)


@endpoint("POST /rooms/{room}/messages", errors=(409, 423))
async def send_to_room(ask: Ask, room: str, body: MessagesBody) -> SentOffset:
    """Send messages to all listeners of a room, in one commit.

    The room is made if there is none. A type that the room retains keeps the latest message of each
    key, until one with `deleted` comes.
    """
    raw = msgspec.json.decode(ask.data, type=_MessagesRaw)
    messages = [
        RoomMessage(
            one.type,
            b"null" if isinstance(one.data, UnsetType) else bytes(one.data),
            one.key,
            one.deleted,
        )
        for one in raw.messages
    ]
    command = c.SendToRoom(room, messages, body.user, body.client, body.n, body.generation)
    offset = await ask.execute(command)
    return SentOffset(offset)


@endpoint("GET /rooms/{room}/retained")
async def get_retained(ask: Ask, room: str, query: RetainedQuery) -> RetainedPage:
    """What a room has kept: the latest message of each retained type and key."""
    types = None if query.types is None else [one for one in query.types.split(",") if one]
    found = await ask.execute(c.GetRetained(room, types))
    return RetainedPage(
        found.offset,
        [
            RetainedShown(one.type, one.key, one.offset, one.sender, one.timestamp, one.json())
            for one in found.values
        ],
    )


@endpoint("GET /rooms/{room}/presence")
async def get_presence(ask: Ask, room: str) -> PresencePage:
    """The users in a room."""
    found = await ask.execute(c.GetPresence(room))
    return PresencePage(
        found.offset,
        [PresentUser(one.user, one.since_ms, one.connections) for one in found.users],
    )


@endpoint("POST /rooms/{room}/tickets")
async def make_room_ticket(ask: Ask, room: str, body: RoomTicketBody) -> RoomTicket:
    """Make a short-lived ticket by which a browser enters the room as one user.

    It is shown once, when the browser enters, as `ticket` in the address.
    """
    return await ask.execute(c.MintTicket(room, body.user, body.can, body.seconds))


class RoomEvents(StreamingResponse):
    """Events as they come; the room is left when the client is."""

    def __init__(self, stream: RoomStream) -> None:
        super().__init__(stream, headers=_HEADERS, media_type=EVENTS)
        self._stream = stream

    async def stream_response(self, send: Send) -> None:
        """Send them, each when the client has taken the ones before."""
        try:
            await super().stream_response(send)
        finally:
            self._stream.close()


@endpoint("GET /rooms/{room}", media_types=(EVENTS,), errors=(416, 423))
async def listen_to_room(ask: Ask, room: str, query: ListenQuery) -> Response:
    """Enter a room, and hear what is sent to it, as server-sent events.

    With a WebSocket, the same address takes messages as well. The frames are the same, and are
    described in PROTOCOL.md. A client that comes again with `Last-Event-ID` or `offset` hears what it
    has missed.
    """
    ask.principal.require(Need("room", "read", room))
    if ask.request.method == "HEAD":
        return Response(headers=_HEADERS, media_type=EVENTS)
    enter = ask.core.room_events
    if enter is None:
        raise InvalidInput("this server has no rooms")
    stream = await enter(
        ask.principal,
        room,
        query=ask.request.scope["query_string"].decode("latin-1"),
        last_event=ask.request.headers.get("last-event-id", ""),
        seconds=query.seconds,
    )
    return RoomEvents(stream)


@endpoint("DELETE /rooms/{room}")
async def delete_room(ask: Ask, room: str) -> Existed:
    """Forget a room, its messages, and what it retained; listeners are sent away."""
    return Existed(deleted=await ask.execute(c.DeleteRoom(room)))
