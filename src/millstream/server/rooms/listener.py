"""A listener: one connection's position in a room's feed, and the handling of slow connections.

    live      at the feed's position; messages are written at once
    waiting   the connection accepts no more bytes now: messages wait in an outbox
    behind    below the feed's position: the listener reads the room's log at its own pace

A listener gets a gap if its outbox overflows, or if messages expired before it read them. After the
gap it gets the retained values and continues. Many retained values form one long frame. The
listener writes this frame in parts, and reads the next part from the store when the client has
taken the last part, so that a slow client costs no memory. Two subclasses write the bytes: to a
WebSocket, and to a stream of server-sent events.
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
from millstream.rooms.commands import LookIntoRoom, ReadRetained, SendToRoom
from millstream.rooms.model import RetainedValue, RoomLook, RoomMessage, Sent
from millstream.rooms.settings import RoomSettings
from millstream.server.auth.access import Principal
from millstream.server.journal import note_failure
from millstream.server.problems import problem_of
from millstream.server.rooms.context import RoomsContext
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
from millstream.server.rooms.pushed_messages import PushedMessages, PushedText, pushed

PIECE_BYTES = 64 * 1024
"""About how many bytes of an outbox are written at once."""

LONG_BYTES = 128 * 1024
"""Bytes that a long frame counts as unread answer of its token while it is written."""

RESTARTED = 1012
FAILED = 1011
TRY_LATER = 1013


def is_for_now(error: MillstreamError) -> bool:
    """Whether the store failed in a way that passes, so that the client should send the message
    again later.

    A full disk is excluded: it lasts until an operator acts.
    """
    if isinstance(error, DiskFull):
        return False
    return isinstance(error, WriteFailed | OutcomeUnknown | OutOfSequence)


class ListenedRoom(Protocol):
    """A room, as its listeners use it."""

    name: str
    feed: Feed
    context: RoomsContext

    @property
    def settings(self) -> RoomSettings:
        """The current settings."""

    @property
    def relays_all(self) -> bool:
        """Whether listeners get records that other processes stored."""

    def relays(self, record: Record) -> bool:
        """Whether listeners of this process get a record."""

    def attach(self, listener: RoomListener) -> bool:
        """Add a listener to the feed; False if the listener must first read up to the feed's
        position."""

    def command_of(
        self, listener: RoomListener, messages: list[RoomMessage], number: int | None
    ) -> SendToRoom:
        """Return the command by which a listener's client sends messages."""

    def send_for(
        self, listener: RoomListener, messages: list[RoomMessage], number: int | None
    ) -> asyncio.Future[Sent]:
        """Store messages of a listener's client, and confirm them to the client."""

    def conflate(
        self, listener: RoomListener, messages: list[RoomMessage], number: int | None
    ) -> None:
        """Keep the latest message of each type and client until the next tick."""


class RoomListener:
    """One listener. Belongs to the event loop that serves its connection."""

    __slots__ = (
        "_behind",
        "_counted_bytes",
        "_gap",
        "_ready",
        "client",
        "connection",
        "deferred_frames",
        "generation",
        "is_cut",
        "is_gone",
        "is_ready",
        "outbox",
        "pending",
        "position",
        "principal",
        "replays_below",
        "room",
        "state",
        "turn",
        "types",
        "unanswered",
        "user",
    )

    def __init__(
        self,
        room: ListenedRoom,
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
        self.state = b""
        """The state of the connection's presence, as JSON."""
        self.position = 0
        self.replays_below = 0
        """Below this offset the client also gets its own messages: it was not in the room, and has
        no copy of them."""
        self.generation = 0
        """The room's generation when the client entered. Once the client has entered through
        another instance, the store refuses its messages under this generation."""
        self.is_ready = True
        """Whether the connection accepts bytes now."""
        self.is_gone = False
        self.is_cut = False
        """Whether further frames of the client are ignored: an earlier frame may not be stored, and
        the client must reconnect to send it again."""
        self.turn = 0
        """How many numbered frames were handed to the store; conflated frames are not counted."""
        self.unanswered = 0
        """How many of these frames have no answer yet."""
        self.outbox: RoomOutbox | None = None
        self.pending: set[int] = set()
        """Numbers of the client's frames that are being stored."""
        self.deferred_frames: list[tuple[bytes, int | None]] | None = None
        """Frames that wait until a long frame is complete; None while no long frame is written."""
        self._behind: asyncio.Task[None] | None = None
        self._ready: asyncio.Event | None = None
        self._counted_bytes = 0
        """Bytes of the outbox that are counted as unread answers of the token."""
        self._gap: tuple[int, int | None] | None = None
        """The gap to report next: the first missing offset and the end; None: up to the room's
        end."""

    # Implemented by the subclasses.

    def push(self, text: PushedText) -> None:
        """Write a text with messages, which many listeners get."""
        raise AssertionError("a subclass implements this")

    def tell(self, text: bytes, offset: int | None = None) -> None:
        """Write a JSON frame; `offset` is the offset from which to resume after it."""
        raise AssertionError("a subclass implements this")

    def tell_part(self, text: bytes, offset: int, *, is_first: bool, is_last: bool) -> None:
        """Write a part of a long frame."""
        raise AssertionError("a subclass implements this")

    def close(self, code: int, reason: str) -> None:
        """End the connection."""
        raise AssertionError("a subclass implements this")

    def refuse(self, error: MillstreamError, number: int | None) -> None:
        """Report to the client the refusal of a frame.

        If the store failed, or the outcome is unknown, the connection ends instead. The client
        reconnects, learns from the welcome which frames are stored, and sends the others again in
        order. After a refusal the client could send later frames first.
        """
        if number is not None and is_for_now(error):
            if number in self.pending:  # else the message was read back: it is stored
                self.is_cut = True
                self.close(FAILED, "the store does not answer now; connect again, and send again")
            return
        if number is not None:
            self.pending.discard(number)
        self.tell(error_frame(problem_of(error), number))

    def refuse_state(self, error: MillstreamError) -> None:
        """Report to the client the refusal of a state; if the store failed, the connection ends.

        The client sets its state again when it reconnects.
        """
        if is_for_now(error):
            self.close(FAILED, "the store does not answer now; connect again")
        else:
            self.tell(error_frame(problem_of(error), None, is_of_presence=True))

    # Called by the feed.

    def deliver(self, delivery: Delivery) -> None:
        """Push messages, or keep them in the outbox."""
        messages = self._pushed(delivery)
        if self.pending and self.client in messages.origins:
            # The confirmation must reach the client before messages behind its own. The commit's
            # callback may run after this delivery, so the first of both confirms.
            self._confirm_own(messages.origins[self.client])
        if self.is_ready and self.outbox is None:
            if self.types is None and self.client not in messages.origins:
                if messages.all_text is not None:
                    self.push(messages.all_text)
            elif (text := messages.text(self.types, self.client)) is not None:
                self.push(text)
            self.room.context.pushed += len(messages.messages)
            return
        self._let_wait(delivery)

    def _pushed(self, delivery: Delivery) -> PushedMessages:
        room = self.room
        return pushed(delivery, None if room.relays_all else room.relays)

    def miss(self, missing: Missing) -> None:
        """Report records that cannot be delivered as a gap, with the retained values."""
        self.room.feed.detach(self)
        self._begin_behind((missing.first, missing.stop))

    def restart(self) -> None:
        """End the connection, because the room was deleted; the client may join again."""
        self.close(RESTARTED, "the room was deleted, or its log was set back; join again")

    # Confirmations.

    def confirm(self, number: int | None, offset: int) -> None:
        """Confirm a stored frame to the client, once."""
        if number is not None and number in self.pending:
            self.pending.discard(number)
            self.tell(sent_frame(number, offset))

    def _confirm_own(self, numbers: dict[int, int]) -> None:
        for number, offset in numbers.items():
            self.confirm(number, offset)

    # Slow connections.

    def pause(self) -> None:
        """Write nothing more: the connection accepts no bytes now."""
        self.is_ready = False

    def resume(self) -> None:
        """Write the waiting messages: the connection accepts bytes again."""
        self.is_ready = True
        if self._ready is not None:
            self._ready.set()
        if self._behind is not None:
            return
        if self._gap is not None:
            # An overflown outbox was dropped as a whole. The gap is reported only now, when the
            # client reads again, so that it covers everything that was lost meanwhile.
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
        messages = self._pushed(delivery)
        sender = self.client if self.client in messages.origins else ""
        self.outbox.put(messages.some(self.types, sender), messages.stop)
        if not self._count_outbox():
            self.outbox.overflow()
        if self.outbox.gap_from is not None:
            self._gap = (self.outbox.gap_from, None)
            self.outbox = None
            self._count_outbox()
            self.room.context.gaps += 1
            self.room.feed.detach(self)

    def _count_outbox(self) -> bool:
        """Count the outbox as unread answers of the token; False if the token's quota is
        exceeded."""
        now_bytes = 0 if self.outbox is None else self.outbox.held_bytes
        grown, quota = now_bytes - self._counted_bytes, self.room.context.quota
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
        """Send the first frame, with the retained values of a look, and start to listen at
        `position`.

        The listener is live at once if the feed is at its position. Otherwise the listener reads
        the log first.
        """
        if look is not None and look.more_after:
            self._begin_behind(gap, (welcome, look))
            return
        if look is not None:
            welcome = begin_retained(welcome) + retained_part(look.retained) + END_RETAINED
        self.tell(welcome, self.position)
        if gap is not None or self._replays or not self.room.attach(self):
            self._begin_behind(gap)

    def stop(self) -> None:
        """Leave the feed, and drop all waiting messages."""
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
        """Read up to the feed's position as fast as the connection accepts bytes, then go live.

        `attach` must follow the last read without an await in between: the feed could move on
        in the meantime, and the listener would miss the records.
        """
        assert self._ready is not None
        feed = self.room.feed
        try:
            with feed.reading(id(self), self.position):
                if greeting is not None:
                    await self._tell_retained(*greeting)
                if gap is not None:
                    await self._tell_gap(*gap)
                while self._replays or not self.room.attach(self):
                    await self._read_some()
        except Overloaded as error:
            self.close(TRY_LATER, error.message)
        except MillstreamError:
            self.close(FAILED, "the store does not answer now; join again")
        except Exception as error:
            note_failure(error, room=self.room.name)
            self.close(FAILED, "the server failed; its log says where")
        finally:
            self._behind = self._ready = None

    @property
    def _replays(self) -> bool:
        """Whether the next message is older than the client's entry."""
        return self.position < self.replays_below

    async def _until_ready(self) -> None:
        """Wait until the connection accepts bytes. Messages that expire meanwhile become a gap."""
        assert self._ready is not None
        if not self._ready.is_set():
            self.room.feed.rest(id(self))
            await self._ready.wait()
            self.room.feed.move(id(self), self.position)

    async def _read_some(self) -> None:
        assert self._ready is not None
        feed, replays = self.room.feed, self._replays
        stop = self.replays_below if replays else feed.position
        delivery = await feed.read(self.position, stop)
        await self._until_ready()
        if isinstance(delivery, Missing):
            await self._tell_gap(delivery.first, delivery.stop)
            return
        self.position = feed.move(id(self), delivery.stop)
        pushed_messages = self._pushed(delivery)
        if self.pending and self.client in pushed_messages.origins:
            self._confirm_own(pushed_messages.origins[self.client])
        if messages := pushed_messages.some(self.types, "" if replays else self.client):
            self.tell(messages_frame(messages, delivery.stop), delivery.stop)
        self.room.context.pushed += len(messages)
        if not self.is_ready:
            self._ready.clear()

    async def _tell_gap(self, first: int, stop: int | None) -> None:
        """Report a gap from `first` to `stop`; without a `stop`, to the room's end."""
        assert self._ready is not None
        types = None if self.types is None else [*self.types]
        look = await self.room.context.session.execute(LookIntoRoom(self.room.name, types))
        await self._until_ready()
        self.position = self.room.feed.move(id(self), look.offset if stop is None else stop)
        await self._tell_retained(gap_frame(first, self.position, look), look)

    async def _tell_retained(self, frame: bytes, look: RoomLook) -> None:
        """Write a frame with all retained values, in parts; each part waits until the last was
        taken.

        A value that changed after the look is left out: its newer message follows.
        """
        assert self._ready is not None
        context, types = self.room.context, None if self.types is None else [*self.types]
        values: list[RetainedValue] = look.retained
        after, start = look.more_after, begin_retained(frame)
        is_first, has_some = True, False
        self.deferred_frames = []
        with context.quota.sending(self.principal, LONG_BYTES if after else 0):
            while True:
                unchanged = [value for value in values if value.offset < look.offset]
                start += retained_part(unchanged) + (b"" if after else END_RETAINED)
                self.tell_part(start, self.position, is_first=is_first, is_last=not after)
                if not self.is_ready:
                    self._ready.clear()
                if not after:
                    break
                has_some, is_first = has_some or bool(unchanged), False
                values, unchanged, start = [], [], b""  # hold no memory while the client reads
                await self._ready.wait()
                page = await context.session.execute(
                    ReadRetained(self.room.name, types, look.log_id, after)
                )
                values, after = page.values, page.more_after
                start = (
                    b","
                    if has_some and any(value.offset < look.offset for value in values)
                    else b""
                )
        frames, self.deferred_frames = self.deferred_frames, None
        for frame_and_offset in frames:
            self.tell(*frame_and_offset)
