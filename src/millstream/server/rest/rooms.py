"""Rooms over HTTP: list and configure rooms, send messages, listen by server-sent events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from millstream.errors import Denied, InvalidInput, NotFound
from millstream.rooms import commands as c
from millstream.rooms.model import RoomInfo, RoomMessage, RoomTicket
from millstream.rooms.names import HISTORY_MAX, TYPE_CHARS_MAX
from millstream.rooms.packed_messages import CLIENT_CHARS_MAX
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
    """The settings of a room; a field that is left out has its default. Durations are seconds."""


class RoomShown(RoomInfo, frozen=True, kw_only=True):
    """A room with its settings and counts."""

    settings: RoomSettingsBody


class RoomPage(Struct, kw_only=True):
    """Rooms in the order of their names."""

    rooms: list[RoomShown]
    after: str | None
    """Pass this as `after` for the next page; null: this is the last page."""


class MessageBody(Struct, forbid_unknown_fields=True, frozen=True):
    """A message to send."""

    type: Annotated[str, Meta(min_length=1, max_length=TYPE_CHARS_MAX)]
    data: Any = None
    """Any JSON value."""
    key: str | None = None
    deleted: bool = False
    """Whether to delete the retained value of the type and key."""


class _MessageRaw(Struct, frozen=True):
    type: str
    data: Raw | UnsetType = UNSET
    key: str | None = None
    deleted: bool = False


class _MessagesRaw(Struct, frozen=True):
    messages: list[_MessageRaw]


class MessagesBody(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Messages for all listeners of a room, stored in one commit."""

    messages: Annotated[list[MessageBody], Meta(min_length=1, max_length=MESSAGES_MAX)]
    user: Annotated[str, Meta(max_length=255)] = ""
    """The user that listeners see as the sender."""
    client: Annotated[str, Meta(max_length=CLIENT_CHARS_MAX)] = ""
    """The id of the sending client, which does not receive the messages."""
    n: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """The client's number of this call; the next `welcome` says whether the call was stored."""
    generation: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """The generation in the client's `welcome`; the answer is 409 if the client reconnected
    since."""


class SentOffset(Struct, frozen=True):
    """The offset of stored messages."""

    offset: int
    """The offset of the first message."""


class RoomTicketBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The user and rights of a ticket."""

    user: Annotated[str, Meta(min_length=1, max_length=255)]
    can: Literal["read", "write"] = "write"
    """Whether the user may only listen, or also send."""
    seconds: float = 60.0


class RetainedQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which retained values."""

    types: str | None = None
    """Types, separated by commas; default: all types."""


class RetainedShown(Struct, frozen=True):
    """A retained value: the latest message of its type and key."""

    type: str
    key: str | None
    offset: int
    sender: str = field(name="from")
    """The user who sent the message; empty if unknown."""
    time: int
    """When the message was sent, in milliseconds since the epoch."""
    data: Any


class RetainedPage(Struct, frozen=True):
    """The retained values of a room as of an offset; messages from this offset on are newer."""

    offset: int
    retained: list[RetainedShown]


class PresentUser(Struct, frozen=True):
    """A user who is present in a room."""

    user: str
    since: int
    """Milliseconds since the epoch."""
    connections: int
    state: dict[str, Any]
    """The state that the user has set last; empty without a state."""


class PresenceBody(Struct, forbid_unknown_fields=True, frozen=True):
    """The state of a connection's presence."""

    connection: Annotated[str, Meta(min_length=1, max_length=255)]
    """The `connection` of the client's `welcome`."""
    user: Annotated[str, Meta(min_length=1, max_length=255)]
    """The user of the `welcome`."""
    state: dict[str, Any]
    """A JSON object of up to 1,024 bytes, which all clients are shown beside the user."""


class PresenceSet(Struct, frozen=True):
    """The state that was set."""

    state: dict[str, Any]


class _StateRaw(Struct, frozen=True):
    state: Raw


class PresencePage(Struct, frozen=True):
    """The users in a room as of an offset; messages from this offset on are newer."""

    offset: int
    presence: list[PresentUser]
    """In the order of names."""


class ListenQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a room's address."""

    live: Literal["sse"]
    """Server-sent events; a WebSocket does not need this parameter."""
    offset: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """The first offset that the client has not processed; default: the room's end."""
    since: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Instead of `offset`, for a client that was not in the room before: the first offset."""
    history: Annotated[int, Meta(ge=0, le=HISTORY_MAX)] = 0
    """Instead of `offset`: so many of the last messages."""
    client: Annotated[str, Meta(max_length=CLIENT_CHARS_MAX)] = ""
    """An id that the client keeps; the client does not receive its own messages."""
    user: Annotated[str, Meta(max_length=255)] = ""
    """The user name shown to other users; without a name the client is not shown."""
    types: str = ""
    """Types, separated by commas; default: all types."""
    sent: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """The client knows the outcome of every frame up to this number."""
    seconds: float | None = None
    """End the stream after this many seconds; default: never."""


endpoint = Endpoints("rooms")


@endpoint("GET /rooms")
async def list_rooms(ask: Ask, query: Page) -> RoomPage:
    """List rooms in the order of their names."""
    infos = await ask.execute(c.ListRooms(checked_after(query.after), query.limit))
    after = infos[-1].name if len(infos) == query.limit else None
    return RoomPage(rooms=[_shown(info) for info in infos], after=after)


@endpoint("PUT /rooms/{room}/settings", body_optional=True, errors=(409,))
async def specify_room(ask: Ask, room: str, body: RoomSettingsBody) -> RoomShown:
    """Create a room, or give an existing room the settings in the body.

    The body holds all settings: a field that is left out has its default. Retained values of types
    that are no longer retained are deleted.
    """
    settings = RoomSettings(**msgspec.structs.asdict(body))
    settings.check()
    await ask.execute(c.SpecifyRoom(room, settings))
    return await get_room(ask, room)


@endpoint("GET /rooms/{room}/info", errors=(404,))
async def get_room(ask: Ask, room: str) -> RoomShown:
    """Show the settings and the counts of a room."""
    info = await ask.execute(c.DescribeRoom(room))
    if info is None:
        raise NotFound(f"there is no room {room!r}; its first message creates it", name=room)
    return _shown(info)


def _shown(info: RoomInfo) -> RoomShown:
    return msgspec.convert(info, RoomShown, from_attributes=True)


@endpoint("POST /rooms/{room}/messages", errors=(409, 423))
async def send_to_room(ask: Ask, room: str, body: MessagesBody) -> SentOffset:
    """Send messages to all listeners of a room, in one commit.

    The room is created if it does not exist. A retained type keeps the latest message of each key,
    until a message with `deleted` removes it.
    """
    raw = msgspec.json.decode(ask.data, type=_MessagesRaw)
    messages = [
        RoomMessage(
            message.type,
            b"null" if isinstance(message.data, UnsetType) else bytes(message.data),
            message.key,
            message.deleted,
        )
        for message in raw.messages
    ]
    command = c.SendToRoom(
        room=room,
        messages=messages,
        sender=body.user,
        origin=body.client,
        number=body.n,
        generation=body.generation,
    )
    offset = await ask.execute(command)
    return SentOffset(offset)


@endpoint("GET /rooms/{room}/retained")
async def get_retained(ask: Ask, room: str, query: RetainedQuery) -> RetainedPage:
    """Show the retained values of a room: the latest message of each retained type and key."""
    types = None if query.types is None else [name for name in query.types.split(",") if name]
    retained = await ask.execute(c.GetRetained(room, types))
    return RetainedPage(
        retained.offset,
        [
            RetainedShown(
                type=value.type,
                key=value.key,
                offset=value.offset,
                sender=value.sender,
                time=value.timestamp,
                data=value.json(),
            )
            for value in retained.values
        ],
    )


@endpoint("GET /rooms/{room}/presence")
async def get_presence(ask: Ask, room: str) -> PresencePage:
    """List the users in a room."""
    present = await ask.execute(c.GetPresence(room))
    return PresencePage(
        present.offset,
        [
            PresentUser(user.user, user.since_ms, user.connections, user.state)
            for user in present.users
        ],
    )


@endpoint("PUT /rooms/{room}/presence", errors=(404,))
async def set_presence(ask: Ask, room: str, body: PresenceBody) -> PresenceSet:
    """Set the state of a connection's presence, such as `{"typing": true}`.

    For clients that listen by server-sent events; a WebSocket sends a frame instead. The state is
    shown beside the user, and ends with the connection.
    """
    ask.principal.require(Need("room", "write", room))
    if ask.principal.user not in ("", body.user):
        raise Denied(
            f"this ticket is for the user {ask.principal.user!r}, not for {body.user!r}",
            noun="room",
            action="write",
            name=room,
        )
    state = bytes(msgspec.json.decode(ask.data, type=_StateRaw).state)
    await ask.core.session.execute(c.SetPresence(room, body.user, body.connection, state))
    return PresenceSet(body.state)


@endpoint("POST /rooms/{room}/tickets")
async def make_room_ticket(ask: Ask, room: str, body: RoomTicketBody) -> RoomTicket:
    """Create a short-lived ticket with which a browser enters the room as a user.

    The browser passes the ticket once, when it enters, as `ticket` in the address.
    """
    return await ask.execute(c.MintTicket(room, body.user, body.can, body.seconds))


class RoomEvents(StreamingResponse):
    """A stream of events; the room is left when the client disconnects."""

    def __init__(self, stream: RoomStream) -> None:
        super().__init__(stream, headers=_HEADERS, media_type=EVENTS)
        self._stream = stream

    async def stream_response(self, send: Send) -> None:
        """Send the events, each when the client has taken the events before."""
        try:
            await super().stream_response(send)
        finally:
            self._stream.close()


@endpoint("GET /rooms/{room}", media_types=(EVENTS,), errors=(416, 423))
async def listen_to_room(ask: Ask, room: str, query: ListenQuery) -> Response:
    """Enter a room and receive its messages as server-sent events.

    A WebSocket at the same address can send messages, too. PROTOCOL.md
    describes the frames of both. A client that reconnects with `Last-Event-ID` or `offset` receives
    the messages it has missed.
    """
    ask.principal.require(Need("room", "read", room))
    if ask.request.method == "HEAD":
        return Response(headers=_HEADERS, media_type=EVENTS)
    rooms = ask.core.rooms
    if rooms is None:
        raise InvalidInput("this server has no rooms")
    stream = await rooms.enter_stream(
        ask.principal,
        room,
        query=ask.request.scope["query_string"].decode("latin-1"),
        last_event=ask.request.headers.get("last-event-id", ""),
        seconds=query.seconds,
    )
    return RoomEvents(stream)


@endpoint("DELETE /rooms/{room}")
async def delete_room(ask: Ask, room: str) -> Existed:
    """Delete a room with its messages and retained values; listeners are disconnected."""
    return Existed(deleted=await ask.execute(c.DeleteRoom(room)))
