"""A room with listeners in this process: feed, settings, and the sending of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from millstream.errors import MillstreamError
from millstream.format import keys, room_keys
from millstream.header import Headers
from millstream.record import Record
from millstream.rooms.commands import Broadcast, SendToRoom
from millstream.rooms.frame_order import Turn
from millstream.rooms.model import RoomMessage, Sent
from millstream.rooms.names import RESERVED_TYPES, log_of
from millstream.rooms.packed_messages import DELETED, NULL, NUMBER, ORIGIN, SENDER, TYPE
from millstream.rooms.settings import DEFAULTS, RoomSettings
from millstream.server.rooms.context import RoomsContext
from millstream.server.rooms.listener import RoomListener

T = TypeVar("T")


class Conflation(Generic[T]):
    """The latest message of each type and sender in the current tick; pure.

    A message replaces an earlier message of the same type and sender. The messages leave in the
    order in which the latest of each arrived. The first message after a quiet period leaves at once,
    the next after a full tick.
    """

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], T] = {}
        self._taken_s: float | None = None

    def __len__(self) -> int:
        return len(self._latest)

    def put(self, kind: str, sender: str, message: T) -> T | None:
        """Add a message; return the replaced message, or None."""
        replaced = self._latest.pop((kind, sender), None)
        self._latest[kind, sender] = message
        return replaced

    def due_s(self, now_s: float, tick_s: float) -> float:
        """Return the seconds from now until the messages may leave."""
        if self._taken_s is None:
            return 0.0
        return max(0.0, self._taken_s + tick_s - now_s)

    def take(self, now_s: float) -> list[T]:
        """Return and remove all messages; the next tick starts now."""
        messages = [*self._latest.values()]
        self._latest = {}
        self._taken_s = now_s
        return messages


class ConflatedMessage(NamedTuple):
    """A message that waits for the tick, and the frames to confirm when it is stored."""

    listener: RoomListener
    message: RoomMessage
    numbers: list[int]


class LiveRoom:
    """One room. Exists while it has a listener, or a client that is entering."""

    def __init__(self, context: RoomsContext, name: str) -> None:
        self.context = context
        self.name = name
        self.log = log_of(name)
        self.feed = context.session.feeds.of(self.log)
        self.feed.hold()
        self.feed.gather_s = context.gather_s
        self.feed.fetch_records_max = context.batch
        if context.own_records is not None:
            context.own_records.follow(self.log)
        self.listeners: set[RoomListener] = set()
        self.guests = 0
        """Listeners, and clients that are entering."""
        self.is_begun = False
        """Whether a first look has set the offset below which all records count as stored here."""
        self._settings = DEFAULTS
        self._sending: dict[str, int] = {}
        """How many frames of each client are being stored."""
        self._settled = asyncio.Event()
        self._conflation: Conflation[ConflatedMessage] = Conflation()
        self._tick: asyncio.TimerHandle | None = None

    @property
    def settings(self) -> RoomSettings:
        """The current settings, as of the last commit that this process knows."""
        views = self.context.store.views
        log_id = views.get(keys.log_name(self.log))
        view = views.get(room_keys.room(log_id)) if log_id else None
        if isinstance(view, RoomSettings):
            self._settings = view
        return self._settings

    @settings.setter
    def settings(self, settings: RoomSettings) -> None:
        self._settings = settings

    def attach(self, listener: RoomListener) -> bool:
        """Add a listener to the feed; False if the listener must first read up to its position."""
        return self.feed.attach(listener)

    def close(self) -> None:
        """Store the conflated messages, and release the feed: the room has no listeners any
        more."""
        if self._tick is not None:
            self._tick.cancel()
            self._flush()
        if self.context.own_records is not None:
            self.context.own_records.unfollow(self.log)
        self.feed.release()

    @property
    def relays_all(self) -> bool:
        """Whether listeners get records that other processes stored."""
        return self.context.own_records is None

    def relays(self, record: Record) -> bool:
        """Whether listeners of this process get a record: presence always, else if it was stored
        here."""
        own_records = self.context.own_records
        if own_records is None or record.headers.get(TYPE) in RESERVED_TYPES:
            return True
        return own_records.has(self.log, record.offset)

    # Sending.

    def send(self, command: SendToRoom) -> asyncio.Future[Sent]:
        """Store messages, and push them to all listeners of this process."""
        return self._store(command, ())

    def send_for(
        self, listener: RoomListener, messages: list[RoomMessage], number: int | None
    ) -> asyncio.Future[Sent]:
        """Store messages of a listener's client, and confirm them to the client."""
        command = self.command_of(listener, messages, number)
        if number is None:
            return self._store(command, ())
        turn = Turn(listener.connection, listener.turn + 1, listener.unanswered > 0)
        storing = self._store(command, ((listener, number),), turn)
        listener.turn += 1
        listener.unanswered += 1
        listener.pending.add(number)
        return storing

    def command_of(
        self, listener: RoomListener, messages: list[RoomMessage], number: int | None
    ) -> SendToRoom:
        """Return the command by which a listener's client sends messages."""
        user, client, generation = listener.user, listener.client, listener.generation
        return SendToRoom(self.name, messages, user, client, number, generation)

    def conflate(
        self, listener: RoomListener, messages: list[RoomMessage], number: int | None
    ) -> None:
        """Keep the latest message of each type and client until the next tick."""
        numbers = [] if number is None else [number]
        listener.pending.update(numbers)
        for message in messages:
            # A replaced message is never stored. The newer message confirms the frames of both, so
            # that the client does not send the older frame again.
            conflated = ConflatedMessage(listener, message, numbers)
            replaced = self._conflation.put(message.type, listener.client, conflated)
            if replaced is not None:
                numbers += [earlier for earlier in replaced.numbers if earlier not in numbers]
        if self._tick is None:
            loop = asyncio.get_running_loop()
            tick_s = self.settings.tick * self.context.profile.tick_factor
            wait_s = self._conflation.due_s(loop.time(), tick_s)
            self._tick = loop.call_later(wait_s, self._flush)

    def _flush(self) -> None:
        """Store the conflated messages of the tick, with one command per client."""
        self._tick = None
        by_client: dict[RoomListener, list[ConflatedMessage]] = {}
        for conflated in self._conflation.take(asyncio.get_running_loop().time()):
            by_client.setdefault(conflated.listener, []).append(conflated)
        for listener, waiting in by_client.items():
            numbers = sorted({number for conflated in waiting for number in conflated.numbers})
            number = numbers[-1] if numbers else None
            messages = [conflated.message for conflated in waiting]
            command = self.command_of(listener, messages, number)
            confirmed = [(listener, number) for number in numbers]
            self.context.begin(self._store_conflated(command, confirmed, listener))

    async def _store_conflated(
        self,
        command: SendToRoom,
        confirmed: Sequence[tuple[RoomListener, int]],
        listener: RoomListener,
    ) -> None:
        try:
            await self._store(command, confirmed)
        except MillstreamError as error:
            numbers: list[int | None] = [number for _, number in confirmed]
            for number in numbers or [None]:
                listener.refuse(error, number)

    def _store(
        self,
        command: SendToRoom,
        confirmed: Sequence[tuple[RoomListener, int]],
        turn: Turn | None = None,
    ) -> asyncio.Future[Sent]:
        """Begin to store messages. They are pushed as soon as they are durable."""
        # `begin_send` tells the feed that a commit is on its way: the feed waits for the records
        # that `_stored` offers, instead of reading them back from the store.
        storing = self.context.session.begin(Broadcast(command, turn))
        self.feed.begin_send()
        self._sending[command.origin] = self._sending.get(command.origin, 0) + 1
        storing.add_done_callback(partial(self._stored, command, confirmed, turn))
        return storing

    def _stored(
        self,
        command: SendToRoom,
        confirmed: Sequence[tuple[RoomListener, int]],
        turn: Turn | None,
        storing: asyncio.Future[Sent],
    ) -> None:
        """Confirm the frames and push the messages. The caller that waits reports a failure."""
        feed, client = self.feed, command.origin
        if turn is not None:
            confirmed[0][0].unanswered -= 1
        if not storing.cancelled() and storing.exception() is None:
            sent = storing.result()
            for listener, number in confirmed:
                listener.confirm(number, sent.offset)
            # Confirm before pushing: the client must know its own offset before messages behind it.
            if self.context.profile.pushes_own:
                feed.offer(sent.offset, records_of(self.log, command, sent))
        self._sending[client] -= 1
        if not self._sending[client]:
            del self._sending[client]
            self._settled.set()
        feed.end_send()

    async def settled(self, client: str) -> None:
        """Wait until no frame of a client is being stored."""
        while client in self._sending:
            self._settled.clear()
            await self._settled.wait()


def records_of(log: str, command: SendToRoom, sent: Sent) -> list[Record]:
    """Return the records of messages that were just stored, equal to records read from the log."""
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
            NULL if message.deleted else message.data,
            sent.timestamp,
            None if message.key is None else message.key.encode(),
            Headers({TYPE: message.type, **common, **({DELETED: True} if message.deleted else {})}),
            sent.timestamp,
        )
        for index, message in enumerate(command.messages)
    ]
