"""A listener: one connection's place in a room's feed, and what happens if it is slow.

    live      at the feed's position; what comes is written at once
    waiting   its connection takes nothing more now: what comes waits in an outbox
    behind    below the feed's position: it reads the room's log up to there, at its own pace

If too much waits, or messages expired before they could be read, the listener is told of a gap, gets
what is retained, and goes on behind it. Many retained values are one long frame: it is written part by
part, each read from the store once the client has taken the part before. How bytes reach the client is left to its two kinds: a
WebSocket, and a stream of server-sent events.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from millstream.embedded.loop.feed import Feed
from millstream.embedded.loop.feed_reads import Delivery, Missing
from millstream.errors import (
    DiskFull,
    MillstreamError,
    OutcomeUnknown,
    OutOfSequence,
    Overloaded,
    WriteFailed,
)
from millstream.record import Record
from millstream.rooms.commands import LookIntoRoom, ReadRetained
from millstream.rooms.model import RetainedValue, RoomLook, RoomMessage, Sent
from millstream.rooms.settings import RoomSettings
from millstream.server.auth.access import Principal
from millstream.server.journal import note_failure
from millstream.server.problems import problem_of
from millstream.server.rooms.context import Ground
from millstream.server.rooms.frames import (
    END_RETAINED,
    begin_retained,
    error_frame,
    gap_frame,
    messages_frame,
    retained_part,
    sent_frame,
)
from millstream.server.rooms.outbox import RoomOutbox
from millstream.server.rooms.pushing import PushedMessages, pushed

PIECE_BYTES = 64 * 1024
"""About how much of an outbox is written at once."""

LONG_BYTES = 128 * 1024
"""What a long frame that is being written counts among the unread answers of its token."""

RESTARTED = 1012
FAILED = 1011
TRY_LATER = 1013


def is_for_now(error: MillstreamError) -> bool:
    """Whether a message was not stored, or may not be, for a reason that passes without its client."""
    if isinstance(error, DiskFull):
        return False
    return isinstance(error, WriteFailed | OutcomeUnknown | OutOfSequence)


class RoomPlace(Protocol):
    """A room, as its listeners know it."""

    name: str
    feed: Feed
    ground: Ground

    @property
    def settings(self) -> RoomSettings:
        """The settings that hold now."""

    @property
    def relays_all(self) -> bool:
        """Whether listeners here hear what other processes send."""

    def relays(self, record: Record) -> bool:
        """Whether a record is for listeners here."""

    def attach(self, listener: RoomListener) -> bool:
        """Let a listener hear what comes; False if it has to read up to that first."""

    def send_for(
        self, listener: RoomListener, messages: list[RoomMessage], number: int | None
    ) -> asyncio.Future[Sent]:
        """Store what a listener's client has sent, and tell it so."""

    def conflate(
        self, listener: RoomListener, messages: list[RoomMessage], number: int | None
    ) -> None:
        """Keep messages until the tick, of each type and client the latest."""


class RoomListener:
    """One listener; belongs to the event loop that serves it."""

    __slots__ = (
        "_behind",
        "_counted_bytes",
        "_gap",
        "_ready",
        "client",
        "connection",
        "generation",
        "is_cut",
        "is_gone",
        "is_ready",
        "outbox",
        "pending",
        "position",
        "principal",
        "room",
        "turn",
        "types",
        "unanswered",
        "user",
        "words",
    )

    def __init__(
        self,
        room: RoomPlace,
        principal: Principal,
        *,
        connection: str,
        client: str,
        user: str,
        types: frozenset[str] | None,
    ) -> None:
        self.room = room
        self.principal = principal
        self.connection = connection
        """The name of the connection, unique in its instance."""
        self.client = client
        self.user = user
        self.types = types
        self.position = 0
        self.generation = 0
        """Of the room, when the client came: what it sends is refused once it came elsewhere."""
        self.is_ready = True
        """Whether the connection takes what is written now."""
        self.is_gone = False
        self.is_cut = False
        """Whether nothing more is heard: a frame may not be stored, and its client comes again."""
        self.turn = 0
        """Frames with a number that were handed to the store at once."""
        self.unanswered = 0
        """How many of these are not answered."""
        self.outbox: RoomOutbox | None = None
        self.pending: set[int] = set()
        """Numbers of this client's frames that are being stored."""
        self.words: list[tuple[bytes, int | None]] | None = None
        """Frames that wait for the end of a long one that is being written; None if none is."""
        self._behind: asyncio.Task[None] | None = None
        self._ready: asyncio.Event | None = None
        self._counted_bytes = 0
        """What the outbox counts among the unread answers of the token."""
        self._gap: tuple[int, int | None] | None = None
        """What is to be told first: the first offset that is missing, and the one behind the last."""

    # What the kinds of listeners do their own way.

    def write(self, frame: bytes) -> None:
        """Write an encoded WebSocket frame that only says messages."""
        raise AssertionError("a kind of listener says how")

    def tell(self, text: bytes, offset: int | None = None) -> None:
        """Write a frame that is JSON; with the offset to go on from, if it says one."""
        raise AssertionError("a kind of listener says how")

    def tell_part(self, text: bytes, offset: int, *, is_first: bool, is_last: bool) -> None:
        """Write a part of a long frame."""
        raise AssertionError("a kind of listener says how")

    def close(self, code: int, reason: str) -> None:
        """End the connection."""
        raise AssertionError("a kind of listener says how")

    def refuse(self, error: MillstreamError, number: int | None) -> None:
        """Tell the client that a frame of its own was refused.

        If the store could not take it, or nobody knows, the connection ends instead: the client
        comes again, is told what is stored, and sends the rest again, in order.
        """
        if number is not None and is_for_now(error):
            if number in self.pending:  # else it came back as stored before its answer was lost
                self.is_cut = True
                self.close(FAILED, "the store does not answer now; come again, and send again")
            return
        if number is not None:
            self.pending.discard(number)
        self.tell(error_frame(problem_of(error), number))

    # What the feed tells.

    def deliver(self, delivery: Delivery) -> None:
        """Push messages, or let them wait."""
        found = self._pushed(delivery)
        if self.pending and self.client in found.origins:
            self._confirm_own(found.origins[self.client])
        if self.is_ready and self.outbox is None:
            if self.types is None and self.client not in found.origins:
                if found.whole:
                    self.write(found.whole)
            elif frame := found.frame(self.types, self.client):
                self.write(frame)
            self.room.ground.pushed += len(found.messages)
            return
        self._let_wait(delivery)

    def _pushed(self, delivery: Delivery) -> PushedMessages:
        room = self.room
        return pushed(delivery, None if room.relays_all else room.relays)

    def miss(self, missing: Missing) -> None:
        """Tell of what cannot be delivered, with what is retained."""
        self.room.feed.detach(self)
        self._begin_behind((missing.first, missing.stop))

    def restart(self) -> None:
        """The room was deleted: a client that wants to go on joins anew."""
        self.close(RESTARTED, "the room was deleted, or its log was set back; join again")

    # What was sent.

    def confirm(self, number: int | None, offset: int) -> None:
        """Tell the client that a frame of its own is stored; once, before what comes behind it."""
        if number is not None and number in self.pending:
            self.pending.discard(number)
            self.tell(sent_frame(number, offset))

    def _confirm_own(self, numbers: dict[int, int]) -> None:
        for number, offset in numbers.items():
            self.confirm(number, offset)

    # Slow connections.

    def pause(self) -> None:
        """The connection takes nothing more for now."""
        self.is_ready = False

    def resume(self) -> None:
        """The connection takes more: write what waits."""
        self.is_ready = True
        if self._ready is not None:
            self._ready.set()
        if self._behind is not None:
            return
        if self._gap is not None:
            self._begin_behind(self._gap)
        while self.is_ready and self.outbox is not None:
            piece = self.outbox.take(PIECE_BYTES)
            self.tell(messages_frame(piece.messages, piece.offset), piece.offset)
            if not self.outbox:
                self.outbox = None
        self._count_outbox()

    def _let_wait(self, delivery: Delivery) -> None:
        if self.outbox is None:
            settings = self.room.settings
            self.outbox = RoomOutbox(
                settings.waiting_bytes_max,
                conflated=settings.conflated_types,
                priority=settings.priority,
            )
        found = self._pushed(delivery)
        own = self.client if self.client in found.origins else ""
        self.outbox.put(found.some(self.types, own), found.stop)
        if not self._count_outbox():
            self.outbox.overflow()
        if self.outbox.gap_from is not None:
            self._gap = (self.outbox.gap_from, None)
            self.outbox = None
            self._count_outbox()
            self.room.ground.gaps += 1
            self.room.feed.detach(self)

    def _count_outbox(self) -> bool:
        """Count what waits among the unread answers of the token; False if that may not wait."""
        now_bytes = 0 if self.outbox is None else self.outbox.held_bytes
        grown, quota = now_bytes - self._counted_bytes, self.room.ground.quota
        if grown > 0 and not quota.let_wait(self.principal, grown):
            return False
        if grown < 0:
            quota.wait_no_more(self.principal, -grown)
        self._counted_bytes = now_bytes
        return True

    # Behind the feed.

    def start(
        self, welcome: bytes, look: RoomLook | None, gap: tuple[int, int | None] | None = None
    ) -> None:
        """Greet the client, with what a look has found retained, and begin to listen at `position`:
        at once if the feed is there, else after reading up to it."""
        if look is not None and look.more_after:
            self._begin_behind(gap, (welcome, look))
            return
        if look is not None:
            welcome = begin_retained(welcome) + retained_part(look.retained) + END_RETAINED
        self.tell(welcome, self.position)
        if gap is not None or not self.room.attach(self):
            self._begin_behind(gap)

    def stop(self) -> None:
        """Listen no more."""
        self.is_gone = True
        self.room.feed.detach(self)
        self.outbox = None
        self._count_outbox()
        if self._behind is not None:
            self._behind.cancel()

    def _begin_behind(
        self,
        gap: tuple[int, int | None] | None,
        greeting: tuple[bytes, RoomLook] | None = None,
    ) -> None:
        self._gap = None
        self._ready = asyncio.Event()
        if self.is_ready:
            self._ready.set()
        self._behind = asyncio.get_running_loop().create_task(self._catch_up(gap, greeting))

    async def _catch_up(
        self, gap: tuple[int, int | None] | None, greeting: tuple[bytes, RoomLook] | None
    ) -> None:
        """Read up to the feed, as fast as the connection takes it, and be live from then on."""
        assert self._ready is not None
        feed = self.room.feed
        try:
            with feed.reading(id(self), self.position):
                if greeting is not None:
                    await self._tell_retained(*greeting)
                if gap is not None:
                    await self._tell_gap(*gap)
                while not self.room.attach(self):
                    await self._read_some()
        except Overloaded as error:
            self.close(TRY_LATER, error.message)
        except MillstreamError:
            self.close(FAILED, "the store does not answer now; join again")
        except Exception as error:
            note_failure(error, room=self.room.name)
            self.close(FAILED, "the server failed here; its log says where")
        finally:
            self._behind = self._ready = None

    async def _until_ready(self) -> None:
        """Wait until the connection takes more; what expires meanwhile is told as a gap."""
        assert self._ready is not None
        if not self._ready.is_set():
            self.room.feed.rest(id(self))
            await self._ready.wait()
            self.room.feed.move(id(self), self.position)

    async def _read_some(self) -> None:
        assert self._ready is not None
        feed = self.room.feed
        found = await feed.read(self.position, feed.position)
        await self._until_ready()
        if isinstance(found, Missing):
            await self._tell_gap(found.first, found.stop)
            return
        self.position = feed.move(id(self), found.stop)
        come = self._pushed(found)
        if self.pending and self.client in come.origins:
            self._confirm_own(come.origins[self.client])
        if messages := come.some(self.types, self.client):
            self.tell(messages_frame(messages, found.stop), found.stop)
        self.room.ground.pushed += len(messages)
        if not self.is_ready:
            self._ready.clear()

    async def _tell_gap(self, first: int, stop: int | None) -> None:
        """Tell of a gap; without a `stop`, of everything up to the end."""
        assert self._ready is not None
        types = None if self.types is None else [*self.types]
        look = await self.room.ground.session.execute(LookIntoRoom(self.room.name, types))
        await self._until_ready()
        self.position = self.room.feed.move(id(self), look.offset if stop is None else stop)
        await self._tell_retained(gap_frame(first, self.position, look), look)

    async def _tell_retained(self, frame: bytes, look: RoomLook) -> None:
        """Write a frame with all retained values, each part once the client has taken the last one.

        A value that has changed since the look is left out: the message that changed it follows.
        """
        assert self._ready is not None
        ground, types = self.room.ground, None if self.types is None else [*self.types]
        values: list[RetainedValue] = look.retained
        after, start = look.more_after, begin_retained(frame)
        is_first, has_some = True, False
        self.words = []
        with ground.quota.sending(self.principal, LONG_BYTES if after else 0):
            while True:
                unchanged = [one for one in values if one.offset < look.offset]
                start += retained_part(unchanged) + (b"" if after else END_RETAINED)
                self.tell_part(start, self.position, is_first=is_first, is_last=not after)
                if not self.is_ready:
                    self._ready.clear()
                if not after:
                    break
                has_some, is_first = has_some or bool(unchanged), False
                values, unchanged, start = [], [], b""  # nothing is held while the client reads
                await self._ready.wait()
                page = await ground.session.execute(
                    ReadRetained(self.room.name, types, look.log_id, after)
                )
                values, after = page.values, page.more_after
                start = (
                    b"," if has_some and any(one.offset < look.offset for one in values) else b""
                )
        words, self.words = self.words, None
        for word in words:
            self.tell(*word)
