# Generated from src/millstream/aio/room.py by `make generate`: change that file, not this one.

"""The room as threads hold it: send, listen, users, retained values."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Unpack

from millstream.command import Session
from millstream.errors import Conflict, CorruptionError, InvalidInput, Truncated
from millstream.log.commands import GetExtent, ReadBlocks, WaitForOffset
from millstream.log.model.names import check_integer
from millstream.numbers import checked_numbers
from millstream.record import Extent, Seconds, optional_ms, to_ms
from millstream.rooms import commands as c
from millstream.rooms.events import Listening, RoomEvent
from millstream.rooms.model import Present, RetainedValues, RoomInfo, RoomMessage, RoomTicket
from millstream.rooms.names import log_of
from millstream.rooms.packed_messages import check_sender, data_of, messages_of
from millstream.rooms.settings import DEFAULTS, RoomOptions, RoomSettings, altered
from millstream.threads.log import Log

LOOK_AGAIN_MS = 30_000
"""Interval at which a listener checks whether its room was recreated; messages need no polling."""

RECORDS_PER_READ = 1_000
TRIES = 8


@checked_numbers
class Room:
    """Messages to all present listeners, with a short memory. Its log is a plain log.

    The first message creates the room. A handle does not hear its own messages.
    """

    def __init__(self, session: Session, name: str, *, user: str = "") -> None:
        self._log = Log(session, log_of(name))
        self.name = name
        self.user = user and check_sender(user)
        """Shown as the sender of what is sent by this handle."""
        self.origin = secrets.token_hex(8)
        """The name of this handle; messages with this origin are not delivered to it."""
        self._session = session

    def __repr__(self) -> str:
        return f"Room({self.name!r})"

    @property
    def log(self) -> Log:
        """The log of the room's messages: it can be read, tailed, or be the source of a queue."""
        return self._log

    def send(self, type: str, data: Any, key: str | None = None) -> int:
        """Send a message, a JSON value under a type, and return its offset when it is durable.

        The room keeps the latest value per key of a retained type until the value is deleted.
        """
        return self._send([RoomMessage(type, data_of(data), key)])

    def send_many(self, messages: Iterable[RoomMessage | Sequence[Any]]) -> range:
        """Send several messages in one commit: `(type, data)`, `(type, data, key)`; their offsets."""
        batch = messages_of(messages)
        if not batch:
            end = self._log.end_offset()
            return range(end, end)
        first = self._send(batch)
        return range(first, first + len(batch))

    def delete(self, type: str, key: str | None = None) -> int:
        """Delete the retained value of a type and key, tell all listeners, and return the offset."""
        return self._send([RoomMessage(type, key=key, deleted=True)])

    def listen(
        self,
        offset: int | None = None,
        types: Iterable[str] | None = None,
        *,
        history: int = 0,
        timeout: Seconds | None = None,
    ) -> Iterator[RoomEvent]:
        """Messages as they come, from now on or from an offset; ends after `timeout` without one.

        With `history`, the last messages of these types come first, at most 1,000.
        What has expired meanwhile is told as a gap, an event of its own: what the room retains is
        to be asked for anew then. `event.next_offset` says where to go on after an interruption.
        """
        if offset is not None:
            check_integer("an offset", offset)
        kinds = None if types is None else [*types]
        if history and offset is not None:
            raise InvalidInput("listen begins at an offset, or with a history, not both")
        if history:
            offset = self._session.execute(c.FindHistory(self.name, history, kinds))
        at = Listening(offset, types=kinds, origin=self.origin)
        timeout_ms = optional_ms(timeout, "timeout")
        idle_ms = 0
        while True:
            extent = self._extent(at)
            gap = at.look(extent)
            if gap is not None:
                idle_ms = 0
                yield gap
            if at.position < extent.end:
                for event in self._read(at, extent.end):
                    idle_ms = 0
                    yield event
            elif timeout_ms is not None and idle_ms >= timeout_ms:
                return
            else:
                idle_ms += self._wait(at, timeout_ms, idle_ms)

    def retained(self, types: Iterable[str] | None = None) -> RetainedValues:
        """Return the retained values, of all or some types; later messages begin at its `offset`."""
        chosen = None if types is None else [*types]
        return self._session.execute(c.GetRetained(self.name, chosen))

    def presence(self) -> list[Present]:
        """Who is in the room, in the order of names: users who are connected to a server."""
        return self._session.execute(c.GetPresence(self.name)).users

    def ticket(
        self, user: str, can: Literal["read", "write"] = "write", expires: Seconds = 60
    ) -> RoomTicket:
        """A ticket by which a browser enters this room as that user, for up to an hour.

        Whatever is sent with it is shown as sent by the user. A browser brings it as `?ticket=`.
        """
        seconds = to_ms(expires, "expires") / 1000
        return self._session.execute(c.MintTicket(self.name, user, can, seconds))

    def settings(self) -> RoomSettings:
        """How the room is; the defaults if nothing was said."""
        info = self.info()
        return DEFAULTS if info is None else info.settings

    def specify(self, **settings: Unpack[RoomOptions]) -> RoomSettings:
        """Change settings of the room and return all settings; unnamed settings stay."""
        for _ in range(TRIES):
            before = self.settings()
            after = altered(before, settings)
            after.check()
            try:
                self._session.execute(c.SpecifyRoom(self.name, after, before))
            except Conflict:
                continue  # another caller changed the settings first
            return after
        raise Conflict(f"the settings of room {self.name!r} are changed all the time; try again")

    def info(self) -> RoomInfo | None:
        """Return the state and counts of the room; None if the room does not exist."""
        return self._session.execute(c.DescribeRoom(self.name))

    def delete_room(self) -> bool:
        """Delete the room, its messages and retained values; False if it did not exist."""
        return self._session.execute(c.DeleteRoom(self.name))

    def _send(self, messages: list[RoomMessage]) -> int:
        command = c.SendToRoom(self.name, messages, self.user, self.origin)
        return self._session.execute(command)

    def _extent(self, at: Listening) -> Extent:
        return self._session.execute(GetExtent(self._log.name, at.log_id))

    def _wait(self, at: Listening, timeout_ms: int | None, idle_ms: int) -> int:
        """Wait for the next message, but no longer than is to be waited; how long that took, in ms."""
        wait_ms = LOOK_AGAIN_MS if timeout_ms is None else min(LOOK_AGAIN_MS, timeout_ms - idle_ms)
        began_s = self._session.clock.seconds()
        wait = WaitForOffset(self._log.name, at.position, wait_ms, at.log_id)
        if not self._session.execute(wait):
            return wait_ms
        return int((self._session.clock.seconds() - began_s) * 1000)

    def _read(self, at: Listening, end: int) -> Iterator[RoomEvent]:
        """Return some messages of the room; unreadable messages become a gap."""
        start = at.position
        stop = min(end, start + RECORDS_PER_READ)
        query = ReadBlocks(self._log.name, start, stop, self._session.limits.read_bytes_max)
        try:
            blocks = self._session.execute(query)
        except Truncated:
            return  # the messages expired meanwhile: the next read reports the gap
        except CorruptionError as error:
            if error.offset > start:
                query = ReadBlocks(self._log.name, start, error.offset, query.bytes_max)
                blocks = self._session.execute(query)
            else:
                yield at.lost(error.stop)
                return
        for block in blocks:
            yield from at.take(block.records())
