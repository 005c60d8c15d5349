"""The hub: the rooms with listeners in this process, and the tasks they share.

`enter` takes steps in an order that no message can slip through: see `_prepare`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from millstream.errors import Denied, MillstreamError, Unauthenticated
from millstream.record import to_ms
from millstream.rooms.backlog import OwnPlace
from millstream.rooms.commands import FindHistory, LookIntoRoom, SendToRoom
from millstream.rooms.model import RoomLook
from millstream.server.auth.access import Principal
from millstream.server.auth.need import Need
from millstream.server.core import Core
from millstream.server.rooms.context import PROFILES, RoomsContext
from millstream.server.rooms.entry import (
    EntryRequest,
    check_offset,
    find_sent,
    missing_of,
    parse_query,
    user_of,
)
from millstream.server.rooms.events import EventListener, EventStream
from millstream.server.rooms.frames import (
    Welcome,
    presence_shown,
    welcome_frame,
)
from millstream.server.rooms.listener import RoomListener
from millstream.server.rooms.live import LiveRoom
from millstream.server.rooms.presence import RoomPresence

TOKEN_CHECK_S = 0.5
"""How often the tokens of all listeners are checked."""

GOING_AWAY = 1001
POLICY = 1008

Make = Callable[..., RoomListener]


class Entered(NamedTuple):
    """A listener that may start, and the first frame that its client gets."""

    listener: RoomListener
    welcome: bytes
    look: RoomLook | None
    """The room's retained values, for a client that enters for the first time."""
    gap: tuple[int, int | None] | None
    """Offsets that the client did not process and that the room no longer has."""


class Hub:
    """The rooms of one server. Belongs to the server's event loop."""

    def __init__(self, core: Core, instance: str) -> None:
        self.core = core
        self.session = core.session
        settings = core.settings
        self.context = RoomsContext(
            core.session,
            PROFILES[settings.rooms_profile],
            is_across=settings.rooms_across,
            quota=core.quota,
            poll_s=settings.rooms_poll_s,
            batch=settings.rooms_batch,
        )
        self.rooms: dict[str, LiveRoom] = {}
        self.attendance = RoomPresence(
            core.session, instance, self.rooms.values, lease_ms=to_ms(settings.instance_lease_s)
        )
        self._checking: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        core.open_rooms(self)

    @property
    def listeners(self) -> int:
        """The number of listeners in all rooms."""
        return sum(len(room.listeners) for room in self.rooms.values())

    def counts(self) -> dict[str, int]:
        """Return the counters of this process: listeners, pushed messages, gaps."""
        return {
            "listeners": self.listeners,
            "pushed": self.context.pushed,
            "gaps": self.context.gaps,
        }

    def own_place(self) -> OwnPlace:
        """Return how far this instance has delivered in each room; the feed pushes every record it
        reads.

        A room whose listeners all lag or wait is left out: no listener is served from its feed.
        """
        rooms = [room for room in self.rooms.values() if room.feed.is_heard]
        return OwnPlace(self.attendance.name, {room.name: room.feed.position for room in rooms})

    # Coming and going.

    async def enter(
        self, principal: Principal, name: str, request: EntryRequest, make: Make
    ) -> Entered:
        """Let a client into a room, up to its first frame. The caller must call `leave` at the end.

        A ticket must be valid when its client enters. Later, only the ticket's token is checked.
        """
        await self.core.tokens.freshen_for(principal)
        principal = self.core.admission.require(principal, Need("room", "read", name))
        user = user_of(principal, request, name)
        if principal.is_ticket:
            principal = replace(principal, expires_ms=None)
        room = self._room(name)
        room.guests += 1
        listener = make(
            room,
            principal,
            connection=secrets.token_urlsafe(9),
            client=request.client,
            user=user,
            types=request.types,
        )
        try:
            async with self.core.quota.entering(principal):
                return await self._prepare(room, listener, request)
        except BaseException:
            self.leave(listener)
            raise

    async def _prepare(
        self, room: LiveRoom, listener: RoomListener, request: EntryRequest
    ) -> Entered:
        """Join, then look, then start to listen at the offset of the look.

        The order matters. Presence is stored before the look, so that the welcome counts this
        client. Earlier frames of a returning client must be in the store before they are searched,
        so that none is reported as missing and then stored. The listener starts at the look's
        offset, so that the welcome's retained values and the messages that follow neither overlap
        nor leave a hole.

        A listener that starts before the look would need a buffer, to drop what the welcome shows
        already. The price of our order: a client with a user gets its welcome one commit later.
        """
        await self.attendance.take()
        if listener.user:
            await self.attendance.join(listener)
        if request.offset is not None:
            await room.settled(request.client)  # frames of the client's earlier connection
            is_node = self.core.seat is not None
            listener.generation = await self.attendance.resume(listener, is_handed_on=is_node)
        # A client that comes from another node may have read records that this node must still
        # apply.
        await self.session.catch_up()
        types = None if request.types is None else [*request.types]
        look = await self.session.execute(LookIntoRoom(room.name, types))
        check_offset(request, look, room.name)
        room.settings = look.settings
        if self.context.own_records is not None and not room.is_begun:
            self.context.own_records.begin(room.log, look.offset)
        room.is_begun = True
        stored: set[int] = set()
        if request.offset is None:
            listener.position = await self._first_offset(room, request, look)
            listener.replays_below = look.offset
            listener.generation = look.generation
        else:
            listener.position = request.offset
            stored = await self.session.ask(
                lambda: find_sent(
                    self.core.store,
                    room.log,
                    request.client,
                    start=listener.position,
                    stop=look.offset,
                )
            )
        welcome = Welcome(
            room=room.name,
            connection=listener.connection,
            client=listener.client,
            user=listener.user,
            generation=listener.generation,
            offset=listener.position,
            start=look.start,
            settings=look.settings,
            users=look.users,
            presence=presence_shown(look.presence),
            as_of=look.offset,
            sent=max(stored, default=None),
            missing=missing_of(stored, request.sent),
        )
        gap = (listener.position, look.start) if listener.position < look.start else None
        look_of_new_client = look if request.offset is None else None
        return Entered(listener, welcome_frame(welcome), look_of_new_client, gap)

    async def _first_offset(self, room: LiveRoom, request: EntryRequest, look: RoomLook) -> int:
        """Return where a client begins that did not listen before."""
        if request.since is not None:
            return request.since
        if not request.history:
            return look.offset
        types = None if request.types is None else [*request.types]
        first = await self.session.execute(FindHistory(room.name, request.history, types))
        return min(first, look.offset)

    async def enter_stream(
        self, principal: Principal, room: str, *, query: str, last_event: str, seconds: float | None
    ) -> EventStream:
        """Let a client into a room by server-sent events. Raises if the client may not enter."""
        request = parse_query(query, last_event=last_event)
        entered = await self.enter(principal, room, request, EventListener)
        listener = entered.listener
        assert isinstance(listener, EventListener)
        listener.begin()
        self.begin_listening(entered)
        return EventStream(listener, leave=self.leave, seconds=seconds)

    def begin_listening(self, entered: Entered) -> None:
        """Send the first frame, and push all later messages to the client."""
        listener = entered.listener
        self.rooms[listener.room.name].listeners.add(listener)
        listener.start(entered.welcome, entered.look, entered.gap)
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        if listener.principal.token and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._check_tokens())

    def leave(self, listener: RoomListener) -> None:
        """Remove a listener whose connection has ended."""
        room = self.rooms[listener.room.name]
        listener.stop()
        room.listeners.discard(listener)
        self.attendance.leave(listener)
        room.guests -= 1
        if not room.guests:
            del self.rooms[room.name]
            room.close()

    def _room(self, name: str) -> LiveRoom:
        room = self.rooms.get(name)
        if room is None:
            room = self.rooms[name] = LiveRoom(self.context, name)
        return room

    # Sending.

    async def send(self, command: SendToRoom) -> int:
        """Send messages for an HTTP request or for a client of the streaming socket."""
        # A room with listeners stores the messages itself: it pushes them right after the commit,
        # instead of reading them back.
        room = self.rooms.get(command.room)
        if room is None:
            return await self.session.execute(command)
        return (await room.send(command)).offset

    # In the background.

    async def _check_tokens(self) -> None:
        """End connections whose tokens were revoked, or have expired."""
        while self.rooms and not self.core.closing.is_set():
            await asyncio.sleep(TOKEN_CHECK_S)
            listeners = [listener for room in self.rooms.values() for listener in room.listeners]
            ended: dict[tuple[Principal, str], bool] = {}
            for listener in listeners:
                access = listener.principal, listener.room.name
                if access not in ended:
                    ended[access] = await self._has_ended(*access)
                if ended[access]:
                    listener.close(POLICY, "the token has expired, or was revoked")

    async def _has_ended(self, principal: Principal, room: str) -> bool:
        if not principal.token:
            return False
        try:
            await self.core.tokens.freshen_for(principal)
            self.core.admission.require(principal, Need("room", "read", room))
        except (Unauthenticated, Denied):
            return True
        except MillstreamError:
            pass  # the store does not answer now: check again later
        return False

    async def _end(self) -> None:
        """End all connections when the server stops."""
        await self.core.closing.wait()
        for room in self.rooms.values():
            for listener in [*room.listeners]:
                listener.close(GOING_AWAY, "the server is stopping")

    async def close(self) -> None:
        """End the background tasks, and release the name of this instance."""
        tasks = [task for task in (self._checking, self._ending) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.context.finish()
        await self.attendance.close()
