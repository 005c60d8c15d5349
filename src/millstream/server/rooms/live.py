"""A room with listeners in this process: its feed, its settings, and what is sent to it here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from millstream.errors import MillstreamError
from millstream.format import keys, room_keys
from millstream.header import Headers
from millstream.record import Record
from millstream.rooms.commands import Broadcast, SendToRoom
from millstream.rooms.model import RoomMessage, Sent
from millstream.rooms.names import RESERVED_TYPES, log_of
from millstream.rooms.packing import DELETED, NULL, NUMBER, ORIGIN, SENDER, TYPE
from millstream.rooms.settings import DEFAULTS, RoomSettings
from millstream.rooms.turns import Turn
from millstream.server.rooms.conflation import Conflation
from millstream.server.rooms.context import Ground
from millstream.server.rooms.listener import RoomListener


class Kept(NamedTuple):
    """A message that waits for the tick, and the frames that are answered when it is stored."""

    listener: RoomListener
    message: RoomMessage
    numbers: list[int]


class LiveRoom:
    """One room; lives while it has a listener, or one on its way."""

    def __init__(self, ground: Ground, name: str) -> None:
        self.ground = ground
        self.name = name
        self.log = log_of(name)
        self.feed = ground.session.feeds.of(self.log)
        self.feed.hold()
        self.feed.gather_s = ground.gather_s
        self.feed.fetch_records_max = ground.batch
        if ground.own is not None:
            ground.own.follow(self.log)
        self.listeners: set[RoomListener] = set()
        self.guests = 0
        """Listeners, and those that are on their way."""
        self.is_begun = False
        """Whether it was looked at: what was there before counts as stored here."""
        self._settings = DEFAULTS
        self._sending: dict[str, int] = {}
        """How many frames of each client are being stored."""
        self._settled = asyncio.Event()
        self._conflation: Conflation[Kept] = Conflation()
        self._tick: asyncio.TimerHandle | None = None

    @property
    def settings(self) -> RoomSettings:
        """The settings that hold now, as far as this process has seen."""
        views = self.ground.store.views
        log_id = views.get(keys.log_name(self.log))
        found = views.get(room_keys.room(log_id)) if log_id else None
        if isinstance(found, RoomSettings):
            self._settings = found
        return self._settings

    @settings.setter
    def settings(self, found: RoomSettings) -> None:
        self._settings = found

    def attach(self, listener: RoomListener) -> bool:
        """Let a listener hear what comes; False if it has to read up to that first."""
        return self.feed.attach(listener)

    def close(self) -> None:
        """Let go of it: nobody listens any more."""
        if self._tick is not None:
            self._tick.cancel()
            self._flush()
        if self.ground.own is not None:
            self.ground.own.unfollow(self.log)
        self.feed.release()

    @property
    def relays_all(self) -> bool:
        """Whether listeners here hear what other processes send."""
        return self.ground.own is None

    def relays(self, record: Record) -> bool:
        """Whether a record is for listeners here: presence always is, and what is stored here."""
        own = self.ground.own
        if own is None or record.headers.get(TYPE) in RESERVED_TYPES:
            return True
        return own.has(self.log, record.offset)

    # Sending.

    def send(self, command: SendToRoom) -> asyncio.Future[Sent]:
        """Store messages, and push them to all who listen here."""
        return self._store(command, ())

    def send_for(
        self, listener: RoomListener, messages: list[RoomMessage], number: int | None
    ) -> asyncio.Future[Sent]:
        """Store what a listener's client has sent, and tell it so."""
        command = self._sent_by(listener, messages, number)
        if number is None:
            return self._store(command, ())
        turn = Turn(listener.connection, listener.turn + 1, listener.unanswered > 0)
        storing = self._store(command, ((listener, number),), turn)
        listener.turn += 1
        listener.unanswered += 1
        listener.pending.add(number)
        return storing

    def _sent_by(
        self, listener: RoomListener, messages: list[RoomMessage], number: int | None
    ) -> SendToRoom:
        user, client, generation = listener.user, listener.client, listener.generation
        return SendToRoom(self.name, messages, user, client, number, generation)

    def conflate(
        self, listener: RoomListener, messages: list[RoomMessage], number: int | None
    ) -> None:
        """Keep messages until the tick, of each type and client the latest."""
        numbers = [] if number is None else [number]
        listener.pending.update(numbers)
        for message in messages:
            kept = Kept(listener, message, numbers)
            replaced = self._conflation.put(message.type, listener.client, kept)
            if replaced is not None:
                numbers += [one for one in replaced.numbers if one not in numbers]
        if self._tick is None:
            loop = asyncio.get_running_loop()
            tick_s = self.settings.tick * self.ground.profile.tick_factor
            wait_s = self._conflation.due_s(loop.time(), tick_s)
            self._tick = loop.call_later(wait_s, self._flush)

    def _flush(self) -> None:
        """Store what has gathered in the tick, all of it in one commit."""
        self._tick = None
        by_client: dict[RoomListener, list[Kept]] = {}
        for kept in self._conflation.take(asyncio.get_running_loop().time()):
            by_client.setdefault(kept.listener, []).append(kept)
        for listener, some in by_client.items():
            numbers = sorted({number for kept in some for number in kept.numbers})
            number = numbers[-1] if numbers else None
            messages = [kept.message for kept in some]
            command = self._sent_by(listener, messages, number)
            told = [(listener, one) for one in numbers]
            self.ground.begin(self._store_kept(command, told, listener))

    async def _store_kept(
        self,
        command: SendToRoom,
        told: Sequence[tuple[RoomListener, int]],
        listener: RoomListener,
    ) -> None:
        try:
            await self._store(command, told)
        except MillstreamError as error:
            numbers: list[int | None] = [number for _, number in told]
            for number in numbers or [None]:
                listener.refuse(error, number)

    def _store(
        self,
        command: SendToRoom,
        told: Sequence[tuple[RoomListener, int]],
        turn: Turn | None = None,
    ) -> asyncio.Future[Sent]:
        """Begin to store messages; they are pushed as soon as they are durable."""
        storing = self.ground.session.begin(Broadcast(command, turn))
        self.feed.begin_send()
        self._sending[command.origin] = self._sending.get(command.origin, 0) + 1
        storing.add_done_callback(partial(self._stored, command, told, turn))
        return storing

    def _stored(
        self,
        command: SendToRoom,
        told: Sequence[tuple[RoomListener, int]],
        turn: Turn | None,
        storing: asyncio.Future[Sent],
    ) -> None:
        """Tell the sender, and push; what failed is told by the caller that waits for it."""
        feed, client = self.feed, command.origin
        if turn is not None:
            told[0][0].unanswered -= 1
        if not storing.cancelled() and storing.exception() is None:
            sent = storing.result()
            for listener, number in told:
                listener.confirm(number, sent.offset)
            if self.ground.profile.pushes_own:
                feed.offer(sent.offset, records_of(self.log, command, sent))
        self._sending[client] -= 1
        if not self._sending[client]:
            del self._sending[client]
            self._settled.set()
        feed.end_send()

    async def settled(self, client: str) -> None:
        """Wait until nothing that a client has sent is on its way into the store."""
        while client in self._sending:
            self._settled.clear()
            await self._settled.wait()


def records_of(log: str, command: SendToRoom, sent: Sent) -> list[Record]:
    """The records that messages have become, as they would be read."""
    common: dict[str, str | int] = {}
    if command.sender:
        common[SENDER] = command.sender
    if command.origin:
        common[ORIGIN] = command.origin
    if command.number is not None:
        common[NUMBER] = command.number
    return [
        Record(
            log,
            sent.offset + index,
            NULL if one.deleted else one.data,
            sent.timestamp,
            None if one.key is None else one.key.encode(),
            Headers({TYPE: one.type, **common, **({DELETED: True} if one.deleted else {})}),
            sent.timestamp,
        )
        for index, one in enumerate(command.messages)
    ]
