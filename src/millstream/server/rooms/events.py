"""A room as server-sent events, for clients behind proxies that know no WebSockets.

The frames are those of the WebSocket. An event's id is the offset to go on from, so that a browser
that connects again by itself resumes where it was.
"""

from __future__ import annotations

import asyncio
import math

from millstream.server.auth.access import Principal
from millstream.server.rooms.entry import parse_query
from millstream.server.rooms.frames import DATA, END_OF_EVENT, in_stream
from millstream.server.rooms.hub import Hub
from millstream.server.rooms.listener import RoomListener

SILENCE_S = 10.0
"""After so long without a message the client is told that the server is there."""

HEARTBEAT = b": still here\n\n"

WRITTEN_BYTES = 64 * 1024
"""What may wait to be sent before a client counts as slow."""


class EventListener(RoomListener):
    """A listener that takes events from a list, as fast as its client reads."""

    __slots__ = ("_bytes", "_events", "is_over", "news")

    def begin(self) -> None:
        """Be ready to be told."""
        self.news = asyncio.Event()
        self.is_over = False
        self._events: list[bytes] = []
        self._bytes = 0

    def write(self, frame: bytes) -> None:
        """Take an encoded WebSocket frame: its text, without the frame's head."""
        head = 2 if frame[1] < 126 else 4 if frame[1] == 126 else 10
        self.tell(frame[head:], self.position)

    def tell(self, text: bytes, offset: int | None = None) -> None:
        """Let an event wait for its client, behind a long one that is being written."""
        if self.words is None:
            self._put(in_stream(text, offset))
        else:
            self.words.append((text, offset))

    def tell_part(self, text: bytes, offset: int, *, is_first: bool, is_last: bool) -> None:
        """Let a part of an event wait for its client."""
        part = in_stream(text, offset).removesuffix(END_OF_EVENT)
        if not is_first:
            part = part.partition(DATA)[2]
        self._put(part + END_OF_EVENT if is_last else part)

    def _put(self, event: bytes) -> None:
        if not event:
            return
        self._events.append(event)
        self._bytes += len(event)
        if self._bytes > WRITTEN_BYTES:
            self.pause()
        self.news.set()

    def close(self, code: int, reason: str) -> None:
        """End the stream behind what waits."""
        self.is_over = True
        self.news.set()

    def take(self) -> bytes:
        """Everything that waits."""
        found = b"".join(self._events)
        self._events, self._bytes = [], 0
        self.news.clear()
        return found


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class EventStream:
    """The events of one client, until it or the server ends; `close` must follow."""

    def __init__(self, hub: Hub, listener: EventListener, seconds: float | None) -> None:
        self._hub = hub
        self._listener = listener
        self._until_s = math.inf if seconds is None else _now_s() + seconds
        self._is_closed = False

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        """What has come, or a sign that the server is there."""
        listener = self._listener
        left_s = self._until_s - _now_s()
        try:
            async with asyncio.timeout(max(0.0, min(SILENCE_S, left_s))):
                await listener.news.wait()
        except TimeoutError:
            if left_s <= SILENCE_S:
                raise StopAsyncIteration from None
            return HEARTBEAT
        found = listener.take()
        if not found:
            raise StopAsyncIteration
        if not listener.is_ready:
            listener.resume()
        elif listener.is_over:
            listener.news.set()
        return found

    def close(self) -> None:
        """The connection has ended; again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._hub.leave(self._listener)


async def enter_stream(
    hub: Hub, principal: Principal, room: str, *, query: str, last_event: str, seconds: float | None
) -> EventStream:
    """Let a client in. Raises if it may not come in."""
    asked = parse_query(query, last_event=last_event)
    entered = await hub.enter(principal, room, asked, EventListener)
    listener = entered.listener
    assert isinstance(listener, EventListener)
    listener.begin()
    hub.begin_listening(entered)
    return EventStream(hub, listener, seconds)
