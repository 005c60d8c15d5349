"""RoomPresence: this process as an instance, and the presence of its connections.

A lease holds the instance's name and, with it, the presence of all connections. One
commit renews the lease. Connections that end are noted in batches. Once per second the instance
notes its watermarks for all rooms with listeners, in one commit, if any has changed. It compares
its positions with the watermarks in the store, so that the next commit makes up for a failed one.
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
    SetPresence,
    TakeInstance,
)
from millstream.rooms.holder import make_holder
from millstream.rooms.model import InstanceTaken, Joined, Leaving, Watermark
from millstream.rooms.names import check_instance
from millstream.server.rooms.listener import RoomListener
from millstream.server.rooms.live import LiveRoom

LEAVE_S = 0.05
"""How long ended connections are gathered before they are noted in one commit."""

AGAIN_S = 1.0
"""The delay before a failed note is repeated."""

WATERMARKS_S = 1.0
"""The interval between two notes of the watermarks."""

RECLAIM_S = 1.0
"""The interval in which a restarted server tries to take over its earlier instance."""

NO_GENERATION = 0
"""No generation: the first generation of an instance is 1."""

RENEWALS = 3
"""How many renewals fit into one lease."""

_logger = logging.getLogger("millstream.server")

Rooms = Callable[[], Iterable[LiveRoom]]


class RoomPresence:
    """One instance. Belongs to one event loop."""

    def __init__(
        self, session: AsyncEmbeddedSession, name: str, rooms: Rooms, *, lease_ms: int
    ) -> None:
        self.name = check_instance(name)
        self._session = session
        self._rooms = rooms
        self._lease_ms = lease_ms
        self.holder = make_holder(session.clock)
        """Names this process and its start time. Other processes check by it whether the holder is
        alive."""
        self._taken: InstanceTaken | None = None
        self._taking = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._reclaiming: asyncio.Task[None] | None = None
        self._noted: dict[str, int] = {}
        """The watermarks of this generation in the store, by room."""
        self._left: list[Leaving] = []
        self._leaving: asyncio.TimerHandle | None = None
        self._notes: set[asyncio.Task[None]] = set()

    @property
    def is_taken(self) -> bool:
        """Whether this process holds the instance's name; it takes the name when first needed."""
        return self._taken is not None

    async def take(self) -> InstanceTaken:
        """Take the instance's name. Raises `Locked` if a live process holds it."""
        async with self._taking:
            if self._taken is None:
                self._taken = await self._session.execute(self._taking_over())
                self._keeping = asyncio.create_task(self._keep())
            return self._taken

    def reclaim(self) -> None:
        """Take over the instance of an earlier process of this name, in the background.

        The earlier connections end now, and not when the lease ends. Other servers stop to wait for
        the watermarks of that process, even if no client ever enters a room of this server.
        """
        self._reclaiming = asyncio.create_task(self._reclaim())

    async def join(self, listener: RoomListener) -> Joined:
        """Store the presence of a connection in its room."""
        while True:
            instance = await self.take()
            try:
                return await self._session.execute(_joining(listener, instance))
            except Fenced:
                await self._take_again(instance)

    async def resume(self, listener: RoomListener, *, is_handed_on: bool) -> int:
        """Note that a client is back, and return the generation under which it sends.

        A node passes no generation: frames that it handed on may still wait at another node.
        """
        instance = await self.take()
        generation = NO_GENERATION if is_handed_on else instance.generation
        return await self._session.execute(
            ResumeInRoom(listener.room.name, listener.client, instance.name, generation)
        )

    async def set_state(self, listener: RoomListener, state: bytes) -> None:
        """Store the state of a connection's presence."""
        room, user, connection = listener.room.name, listener.user, listener.connection
        await self._session.execute(SetPresence(room, user, connection, state))
        listener.state = state

    def _taking_over(self) -> TakeInstance:
        return TakeInstance(self.name, self.holder, self._lease_ms)

    def leave(self, listener: RoomListener) -> None:
        """Note soon, in a batch, that a connection has ended."""
        if not listener.user or self._taken is None:
            return
        self._left.append(Leaving(listener.room.name, listener.user, listener.connection))
        self._note_left_in(LEAVE_S)

    async def note_left(self) -> None:
        """Note all ended connections now, and return when the notes are stored."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._note_left()
        await asyncio.gather(*self._notes)

    async def close(self) -> None:
        """Release the instance's name; its connections count as ended from now on."""
        if self._leaving is not None:
            self._leaving.cancel()
        tasks = [task for task in (self._reclaiming, self._keeping) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._notes, return_exceptions=True)
        instance, self._taken = self._taken, None
        if instance is not None:
            try:
                await self._session.execute(FreeInstance(instance.name, instance.generation))
            except MillstreamError:
                pass  # the lease ends by itself

    # In the background.

    async def _reclaim(self) -> None:
        while self._taken is None:
            try:
                instances = await self._session.execute(ListInstances())
                if not any(each.holder and each.name == self.name for each in instances):
                    return
                await self.take()
            except MillstreamError:  # the earlier lease holds, or the store does not answer now
                await asyncio.sleep(RECLAIM_S)

    async def _keep(self) -> None:
        """Renew the lease and note watermarks, in intervals."""
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
        """Note the watermarks, and renew the lease if due; False if the store refused or failed."""
        instance = self._taken
        if instance is None:
            return False
        try:
            if renews:
                await self._session.execute(
                    RenewInstance(instance.name, instance.generation, self._lease_ms)
                )
            await self._note_watermarks(instance)
            return True
        except Fenced:
            await self._try_again(instance)
        except MillstreamError as error:
            _logger.warning("instance_not_renewed", extra={"error": type(error).__name__})
        return False

    async def _note_watermarks(self, instance: InstanceTaken) -> None:
        """Store this instance's position in every room where a listener is live or reads."""
        positions = {
            room.name: offset for room in self._rooms() if (offset := room.feed.lowest) is not None
        }
        marks = [
            Watermark(room, offset)
            for room, offset in positions.items()
            if offset != self._noted.get(room)
        ]
        ended = [room for room in self._noted if room not in positions]
        if marks or ended:
            await self._session.execute(
                NoteWatermarks(instance.name, instance.generation, marks, ended)
            )
            self._noted = positions

    async def _try_again(self, lost: InstanceTaken) -> None:
        try:
            await self._take_again(lost)
        except MillstreamError as error:
            _logger.error("instance_lost", extra={"instance": self.name, "error": error.message})

    async def _take_again(self, lost: InstanceTaken) -> None:
        """Take the instance's name again, with all connections.

        The lease ended while this process was suspended, for example by a sleeping computer.
        """
        async with self._taking:
            if self._taken is None or self._taken.generation != lost.generation:
                return
            self._taken = await self._session.execute(self._taking_over())
            self._noted = {}
            _logger.warning("instance_taken_again", extra={"instance": self.name})
            for listener in [each for room in self._rooms() for each in room.listeners]:
                if listener.user and not listener.is_gone:  # a listener may leave during an await
                    await self._session.execute(_joining(listener, self._taken))

    def _note_left_in(self, seconds: float) -> None:
        if self._leaving is None:
            loop = asyncio.get_running_loop()
            self._leaving = loop.call_later(seconds, self._note_left)

    def _note_left(self) -> None:
        self._leaving = None
        if self._taken is None:
            return
        leaving, self._left = self._left, []
        for first in range(0, len(leaving), PRESENCE_PER_COMMIT):
            batch = leaving[first : first + PRESENCE_PER_COMMIT]
            self._begin(LeaveRooms(self._taken.name, self._taken.generation, batch))

    def _begin(self, command: Operation[Any]) -> None:
        """Execute a command in the background."""
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


def _joining(listener: RoomListener, instance: InstanceTaken) -> JoinRoom:
    return JoinRoom(
        room=listener.room.name,
        instance=instance.name,
        generation=instance.generation,
        connection=listener.connection,
        client=listener.client,
        user=listener.user,
        state=listener.state,
    )
