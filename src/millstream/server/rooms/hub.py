"""The hub: the rooms that have listeners in this process, and everything that they share."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from millstream.errors import Denied, MillstreamError, Unauthenticated
from millstream.record import to_ms
from millstream.rooms.backlog import OwnPlace
from millstream.rooms.commands import LookIntoRoom, SendToRoom
from millstream.rooms.model import RoomLook
from millstream.server.auth.access import Principal
from millstream.server.auth.need import Need
from millstream.server.core import Core
from millstream.server.rooms.context import Ground
from millstream.server.rooms.entry import RoomAsked, check_offset, find_sent, missing_of, user_of
from millstream.server.rooms.frames import (
    Welcome,
    presence_shown,
    welcome_frame,
)
from millstream.server.rooms.listener import RoomListener
from millstream.server.rooms.live import LiveRoom
from millstream.server.rooms.presence import Attendance
from millstream.server.rooms.profile import PROFILES

LOOK_S = 0.5
"""How often it is looked whether the tokens of listeners still count."""

GOING_AWAY = 1001
POLICY = 1008

Make = Callable[..., RoomListener]


class Entered(NamedTuple):
    """A listener that may begin, and the first frame that its client gets."""

    listener: RoomListener
    welcome: bytes
    look: RoomLook | None
    """What the room retains, if the client wants to know."""
    gap: tuple[int, int | None] | None
    """What has expired of what the client wanted."""


class Hub:
    """Rooms of one server; belongs to its event loop."""

    def __init__(self, core: Core, instance: str) -> None:
        self.core = core
        self.session = core.session
        settings = core.settings
        self.ground = Ground(
            core.session,
            PROFILES[settings.rooms_profile],
            is_across=settings.rooms_across,
            quota=core.quota,
            poll_s=settings.rooms_poll_s,
            batch=settings.rooms_batch,
        )
        self.rooms: dict[str, LiveRoom] = {}
        self.attendance = Attendance(
            core.session, instance, self.rooms.values, lease_ms=to_ms(settings.instance_lease_s)
        )
        self._looking: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        core.send_to_room = self.send
        core.room_counts = self.counts
        core.checkup.own_place = self.own_place

    @property
    def listeners(self) -> int:
        """How many listen now."""
        return sum(len(room.listeners) for room in self.rooms.values())

    def counts(self) -> dict[str, int]:
        """What is measured of this process: who listens, and what was pushed and dropped."""
        return {
            "listeners": self.listeners,
            "pushed": self.ground.pushed,
            "gaps": self.ground.gaps,
        }

    def own_place(self) -> OwnPlace:
        """How far this instance has come in each room: what it has heard, it has pushed.

        A room in which no listener takes anything now has no place: nobody waits for its feed.
        """
        rooms = [room for room in self.rooms.values() if room.feed.is_heard]
        return OwnPlace(self.attendance.name, {one.name: one.feed.position for one in rooms})

    # Coming and going.

    async def enter(self, principal: Principal, name: str, asked: RoomAsked, make: Make) -> Entered:
        """Let a client into a room, as far as its first frame; `leave` must follow.

        A ticket must be good when its client enters. From then on its token counts alone.
        """
        principal = await self.core.tokens.confirm(principal)
        principal.require(Need("room", "read", name))
        user = user_of(principal, asked, name)
        if principal.is_ticket:
            principal = replace(principal, expires_ms=None)
        room = self._room(name)
        room.guests += 1
        listener = make(
            room,
            principal,
            connection=secrets.token_urlsafe(9),
            client=asked.client,
            user=user,
            types=asked.types,
        )
        try:
            async with self.core.quota.entering(principal):
                return await self._prepare(room, listener, asked)
        except BaseException:
            self.leave(listener)
            raise

    async def _prepare(self, room: LiveRoom, listener: RoomListener, asked: RoomAsked) -> Entered:
        await self.attendance.take()
        if listener.user:
            await self.attendance.join(listener)
        if asked.offset is not None:
            await room.settled(asked.client)  # what an earlier connection of the client has sent
            is_node = self.core.seat is not None
            listener.generation = await self.attendance.resume(listener, is_handed_on=is_node)
        # A client that comes from another node may have heard what this one is still to apply.
        await self.session.catch_up()
        types = None if asked.types is None else [*asked.types]
        look = await self.session.execute(LookIntoRoom(room.name, types))
        check_offset(asked, look, room.name)
        room.settings = look.settings
        if self.ground.own is not None and not room.is_begun:
            self.ground.own.begin(room.log, look.offset)
        room.is_begun = True
        stored: set[int] = set()
        if asked.offset is None:
            listener.position = look.offset
            listener.generation = look.generation
        else:
            listener.position = asked.offset
            stored = await self.session.ask(
                lambda: find_sent(
                    self.core.store,
                    room.log,
                    asked.client,
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
            missing=missing_of(stored, asked.sent),
        )
        gap = (listener.position, look.start) if listener.position < look.start else None
        wanted = look if asked.offset is None else None
        return Entered(listener, welcome_frame(welcome), wanted, gap)

    def begin_listening(self, entered: Entered) -> None:
        """Greet a client, and push to it what comes from then on."""
        listener = entered.listener
        self.rooms[listener.room.name].listeners.add(listener)
        listener.start(entered.welcome, entered.look, entered.gap)
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        if listener.principal.token and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look())

    def leave(self, listener: RoomListener) -> None:
        """A connection has ended."""
        room = self.rooms[listener.room.name]
        listener.stop()
        room.listeners.discard(listener)
        self.attendance.leave(listener)
        room.guests -= 1
        if not room.guests:
            del self.rooms[room.name]
            room.close()

    def _room(self, name: str) -> LiveRoom:
        found = self.rooms.get(name)
        if found is None:
            found = self.rooms[name] = LiveRoom(self.ground, name)
        return found

    # Sending.

    async def send(self, command: SendToRoom) -> int:
        """Send for a request, or a client of the streaming socket."""
        room = self.rooms.get(command.room)
        if room is None:
            return await self.session.execute(command)
        return (await room.send(command)).offset

    # In the background.

    async def _look(self) -> None:
        """End connections whose tokens were revoked, or whose tickets are over."""
        while self.rooms and not self.core.closing.is_set():
            await asyncio.sleep(LOOK_S)
            listeners = [one for room in self.rooms.values() for one in room.listeners]
            ended: dict[tuple[Principal, str], bool] = {}
            for listener in listeners:
                asked = listener.principal, listener.room.name
                if asked not in ended:
                    ended[asked] = await self._has_ended(*asked)
                if ended[asked]:
                    listener.close(POLICY, "the token has expired, or was revoked")

    async def _has_ended(self, principal: Principal, room: str) -> bool:
        if not principal.token:
            return False
        try:
            (await self.core.tokens.confirm(principal)).require(Need("room", "read", room))
        except (Unauthenticated, Denied):
            return True
        except MillstreamError:
            pass  # the store does not answer now: look again later
        return False

    async def _end(self) -> None:
        """When the server stops: end all connections."""
        await self.core.closing.wait()
        for room in self.rooms.values():
            for listener in [*room.listeners]:
                listener.close(GOING_AWAY, "the server is stopping")

    async def close(self) -> None:
        """Finish what was begun, and stop being an instance."""
        tasks = [one for one in (self._looking, self._ending) if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.ground.finish()
        await self.attendance.close()
