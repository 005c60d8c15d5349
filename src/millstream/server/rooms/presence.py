"""Attendance: this process as an instance, and the presence of its connections.

The instance's name is held by a lease that one commit prolongs, and with it the presence of all
connections. Connections that end are noted together. How far the instance has come in each room with
listeners is noted once per second, in one commit for all rooms, if it has changed: what the store
knows is compared with what is so, so a commit that failed is made up for by the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from millstream.command import Operation
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.errors import Fenced, MillstreamError
from millstream.rooms.commands import (
    PRESENCE_PER_COMMIT,
    FreeInstance,
    JoinRoom,
    LeaveRooms,
    ListInstances,
    NoteWatermarks,
    RenewInstance,
    ResumeInRoom,
    TakeInstance,
)
from millstream.rooms.holder import make_holder
from millstream.rooms.model import InstanceTaken, Joined, Leaving, Watermark
from millstream.rooms.names import check_instance
from millstream.server.rooms.listener import RoomListener
from millstream.server.rooms.live import LiveRoom

LEAVE_S = 0.05
"""How long connections that end are gathered before they are noted."""

AGAIN_S = 1.0
"""How long it is waited before they are noted again, if that failed."""

WATERMARKS_S = 1.0
"""How often watermarks are noted, if they have changed."""

RECLAIM_S = 1.0
"""How often a server that was started again tries to take over what it was before."""

NO_GENERATION = 0
"""Of no instance: the first one of each name is 1."""

RENEWALS = 3
"""How often a lease is renewed within its time."""

_logger = logging.getLogger("millstream.server")

Rooms = Callable[[], Iterable[LiveRoom]]


class Attendance:
    """One instance; belongs to one event loop."""

    def __init__(
        self, session: AsyncEmbeddedSession, name: str, rooms: Rooms, *, lease_ms: int
    ) -> None:
        self.name = check_instance(name)
        self._session = session
        self._rooms = rooms
        self._lease_ms = lease_ms
        self.holder = make_holder(session.clock)
        """Which process this is; others find out by it whether it is dead."""
        self._taken: InstanceTaken | None = None
        self._taking = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._reclaiming: asyncio.Task[None] | None = None
        self._noted: dict[str, int] = {}
        """The watermarks of this generation that the store has, by room."""
        self._left: list[Leaving] = []
        self._leaving: asyncio.TimerHandle | None = None
        self._notes: set[asyncio.Task[None]] = set()

    @property
    def is_taken(self) -> bool:
        """Whether this process is an instance; it becomes one when it is first needed."""
        return self._taken is not None

    async def take(self) -> InstanceTaken:
        """Become the instance. Raises `Locked` if another process is it, and alive."""
        async with self._taking:
            if self._taken is None:
                self._taken = await self._session.execute(self._taking_over())
                self._keeping = asyncio.create_task(self._keep())
            return self._taken

    def reclaim(self) -> None:
        """Take over in the background what an earlier process of this name has left.

        Its connections end then, rather than when its lease does, and the other servers do not miss
        it any more, also if no client enters a room here.
        """
        self._reclaiming = asyncio.create_task(self._reclaim())

    async def join(self, listener: RoomListener) -> Joined:
        """Note a connection in its room."""
        while True:
            taken = await self.take()
            try:
                return await self._session.execute(_joining(listener, taken))
            except Fenced:
                await self._take_again(taken)

    async def resume(self, listener: RoomListener, *, is_handed_on: bool) -> int:
        """Note that a client is back: the generation in which it sends.

        Of a node, frames that were handed on may wait at another one.
        """
        taken = await self.take()
        generation = NO_GENERATION if is_handed_on else taken.generation
        return await self._session.execute(
            ResumeInRoom(listener.room.name, listener.client, taken.name, generation)
        )

    def _taking_over(self) -> TakeInstance:
        return TakeInstance(self.name, self.holder, self._lease_ms)

    def leave(self, listener: RoomListener) -> None:
        """Note soon, together with others, that a connection has ended."""
        if not listener.user or self._taken is None:
            return
        self._left.append(Leaving(listener.room.name, listener.user, listener.connection))
        self._note_left_in(LEAVE_S)

    async def note_left(self) -> None:
        """Note now which connections have ended, and return once it is stored."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._note_left()
        await asyncio.gather(*self._notes)

    async def close(self) -> None:
        """Stop being the instance: its connections count as left from now on."""
        if self._leaving is not None:
            self._leaving.cancel()
        tasks = [one for one in (self._reclaiming, self._keeping) if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._notes, return_exceptions=True)
        taken, self._taken = self._taken, None
        if taken is not None:
            try:
                await self._session.execute(FreeInstance(taken.name, taken.generation))
            except MillstreamError:
                pass  # the lease ends by itself

    # In the background.

    async def _reclaim(self) -> None:
        while self._taken is None:
            try:
                found = await self._session.execute(ListInstances())
                if not any(one.holder and one.name == self.name for one in found):
                    return
                await self.take()
            except MillstreamError:  # its lease holds, or the store does not answer now
                await asyncio.sleep(RECLAIM_S)

    async def _keep(self) -> None:
        """Renew the lease, and note watermarks."""
        assert self._taken is not None
        loop = asyncio.get_running_loop()
        renew_s = self._taken.lease_ms / 1000 / RENEWALS
        renewed_s = loop.time()
        while True:
            await asyncio.sleep(min(WATERMARKS_S, renew_s))
            is_due = loop.time() - renewed_s >= renew_s
            if await self.keep_up(renews=is_due) and is_due:
                renewed_s = loop.time()

    async def keep_up(self, *, renews: bool) -> bool:
        """Note watermarks, and renew the lease if that is due; False if the store did not take it."""
        taken = self._taken
        if taken is None:
            return False
        try:
            if renews:
                await self._session.execute(
                    RenewInstance(taken.name, taken.generation, self._lease_ms)
                )
            await self._note_watermarks(taken)
            return True
        except Fenced:
            await self._try_again(taken)
        except MillstreamError as error:
            _logger.warning("instance_not_renewed", extra={"error": type(error).__name__})
        return False

    async def _note_watermarks(self, taken: InstanceTaken) -> None:
        """Have the store know where this instance is: in rooms where a listener hears or reads."""
        wanted = {
            room.name: offset for room in self._rooms() if (offset := room.feed.lowest) is not None
        }
        marks = [
            Watermark(room, offset)
            for room, offset in wanted.items()
            if offset != self._noted.get(room)
        ]
        ended = [room for room in self._noted if room not in wanted]
        if marks or ended:
            await self._session.execute(NoteWatermarks(taken.name, taken.generation, marks, ended))
            self._noted = wanted

    async def _try_again(self, lost: InstanceTaken) -> None:
        try:
            await self._take_again(lost)
        except MillstreamError as error:
            _logger.error("instance_lost", extra={"instance": self.name, "error": error.message})

    async def _take_again(self, lost: InstanceTaken) -> None:
        """Be the instance again, with all its connections: the lease ended while this process did
        not run."""
        async with self._taking:
            if self._taken is None or self._taken.generation != lost.generation:
                return
            self._taken = await self._session.execute(self._taking_over())
            self._noted = {}
            _logger.warning("instance_taken_again", extra={"instance": self.name})
            for listener in [one for room in self._rooms() for one in room.listeners]:
                if listener.user and not listener.is_gone:  # it may have left meanwhile
                    await self._session.execute(_joining(listener, self._taken))

    def _note_left_in(self, seconds: float) -> None:
        if self._leaving is None:
            loop = asyncio.get_running_loop()
            self._leaving = loop.call_later(seconds, self._note_left)

    def _note_left(self) -> None:
        self._leaving = None
        if self._taken is None:
            return
        left, self._left = self._left, []
        for first in range(0, len(left), PRESENCE_PER_COMMIT):
            some = left[first : first + PRESENCE_PER_COMMIT]
            self._begin(LeaveRooms(self._taken.name, self._taken.generation, some))

    def _begin(self, command: Operation[Any]) -> None:
        """Carry out a command that no client waits for."""
        task = asyncio.get_running_loop().create_task(self._carry_out(command))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _carry_out(self, command: Operation[Any]) -> None:
        try:
            await self._session.execute(command)
        except MillstreamError as error:
            _logger.warning("attendance_not_noted", extra={"error": type(error).__name__})
            if isinstance(command, LeaveRooms) and self._taken is not None:
                self._left += command.left
                self._note_left_in(AGAIN_S)


def _joining(listener: RoomListener, taken: InstanceTaken) -> JoinRoom:
    return JoinRoom(
        listener.room.name,
        taken.name,
        taken.generation,
        listener.connection,
        listener.client,
        listener.user,
    )
