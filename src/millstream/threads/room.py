# Generated from src/millstream/aio/room.py by `make generate`: change that file, not this one.

"""The room as threads hold it: send, listen, its users, and the values that it keeps."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Unpack

from millstream.command import Session
from millstream.errors import Conflict, CorruptionError, Truncated
from millstream.log.commands import GetExtent, ReadBlocks, WaitForOffset
from millstream.log.model.names import check_integer
from millstream.numbers import checked_numbers
from millstream.record import Extent, Seconds, optional_ms, to_ms
from millstream.rooms import commands as c
from millstream.rooms.events import Listening, RoomEvent
from millstream.rooms.model import Present, RetainedValues, RoomInfo, RoomMessage, RoomTicket
from millstream.rooms.names import log_of
from millstream.rooms.packing import check_sender, data_of, messages_of
from millstream.rooms.settings import DEFAULTS, RoomOptions, RoomSettings, altered
from millstream.threads.log import Log

LOOK_AGAIN_MS = 30_000
"""A listener looks so often whether its room was deleted and made again; for messages it waits."""

RECORDS_PER_READ = 1_000
TRIES = 8


@checked_numbers
class Room:
    """Messages to all who listen now, with a short memory; its log is a log like any other.

    A room comes to exist with its first message. A handle does not hear what is sent by it.
    """

    def __init__(self, session: Session, name: str, *, user: str = "") -> None:
        self._log = Log(session, log_of(name))
        self.name = name
        self.user = user and check_sender(user)
        """Shown as the sender of what is sent by this handle."""
        self.origin = secrets.token_hex(8)
        """Names this handle: its own messages are left out of what it hears."""
        self._session = session

    def __repr__(self) -> str:
        return f"Room({self.name!r})"

    @property
    def log(self) -> Log:
        """The log of the room's messages: it can be read, tailed, or be the source of a queue."""
        return self._log

    def send(self, type: str, data: Any, key: str | None = None) -> int:
        """Send one message, a JSON value under a type; its offset, once it is durable.

        Of a type that the room retains, the latest value of each key is kept until it is deleted.
        """
        return self._send([RoomMessage(type, data_of(data), key)])

    def send_many(self, messages: Iterable[RoomMessage | Sequence[Any]]) -> range:
        """Send several messages in one commit: `(type, data)`, `(type, data, key)`; their offsets."""
        found = messages_of(messages)
        if not found:
            end = self._log.end_offset()
            return range(end, end)
        first = self._send(found)
        return range(first, first + len(found))

    def delete(self, type: str, key: str | None = None) -> int:
        """Forget what is retained of a type and key, and tell all listeners; the offset of that."""
        return self._send([RoomMessage(type, key=key, deleted=True)])

    def listen(
        self,
        offset: int | None = None,
        types: Iterable[str] | None = None,
        *,
        timeout: Seconds | None = None,
    ) -> Iterator[RoomEvent]:
        """Messages as they come, from now on or from an offset; ends after `timeout` without one.

        What has expired meanwhile is told as a gap, an event of its own: what the room retains is
        to be asked for anew then. `event.next_offset` says where to go on after an interruption.
        """
        if offset is not None:
            check_integer("an offset", offset)
        at = Listening(offset, types=None if types is None else [*types], origin=self.origin)
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
        """What the room keeps, all or some types; messages from its `offset` on come after it."""
        wanted = None if types is None else [*types]
        return self._session.execute(c.GetRetained(self.name, wanted))

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
        """Say how the room is; what is not named stays as it is. Answers all settings."""
        for _ in range(TRIES):
            before = self.settings()
            after = altered(before, settings)
            after.check()
            try:
                self._session.execute(c.SpecifyRoom(self.name, after, before))
            except Conflict:
                continue  # another caller was faster
            return after
        raise Conflict(f"the settings of room {self.name!r} are changed all the time; try again")

    def info(self) -> RoomInfo | None:
        """How the room stands; None if it does not exist."""
        return self._session.execute(c.DescribeRoom(self.name))

    def delete_room(self) -> bool:
        """Forget the room, its messages and what it retains; False if there was none."""
        return self._session.execute(c.DeleteRoom(self.name))

    def _send(self, messages: list[RoomMessage]) -> int:
        command = c.SendToRoom(self.name, messages, self.user, self.origin)
        return self._session.execute(command)

    def _extent(self, at: Listening) -> Extent:
        return self._session.execute(GetExtent(self._log.name, at.setbacks or 0))

    def _wait(self, at: Listening, timeout_ms: int | None, idle_ms: int) -> int:
        """Wait for the next message, but no longer than is to be waited; how long that took, in ms."""
        wait_ms = LOOK_AGAIN_MS if timeout_ms is None else min(LOOK_AGAIN_MS, timeout_ms - idle_ms)
        began_s = self._session.clock.seconds()
        wait = WaitForOffset(self._log.name, at.position, wait_ms, at.setbacks)
        if not self._session.execute(wait):
            return wait_ms
        return int((self._session.clock.seconds() - began_s) * 1000)

    def _read(self, at: Listening, end: int) -> Iterator[RoomEvent]:
        """Some of the messages that are there; what cannot be read is a gap."""
        start = at.position
        stop = min(end, start + RECORDS_PER_READ)
        query = ReadBlocks(self._log.name, start, stop, self._session.limits.read_bytes_max)
        try:
            blocks = self._session.execute(query)
        except Truncated:
            return  # it was swept meanwhile: the next look tells
        except CorruptionError as error:
            if error.offset > start:
                query = ReadBlocks(self._log.name, start, error.offset, query.bytes_max)
                blocks = self._session.execute(query)
            else:
                yield at.lost(error.stop)
                return
        for block in blocks:
            yield from at.take(block.records())
