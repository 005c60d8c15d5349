"""A room as server-sent events, for clients behind proxies that do not support WebSockets.

The frames are the same as on a WebSocket. An event's id is the offset from which to resume, so that
a browser that reconnects by itself misses no message.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from millstream.server.rooms.frames import DATA, END_OF_EVENT, in_stream
from millstream.server.rooms.listener import RoomListener
from millstream.server.rooms.pushed_messages import PushedText

SILENCE_S = 10.0
"""The interval of silence after which the client gets a heartbeat."""

HEARTBEAT = b": still here\n\n"

WRITTEN_BYTES = 64 * 1024
"""Bytes that may wait to be sent before a client counts as slow."""


class EventListener(RoomListener):
    """A listener whose events wait in a list until the client reads them."""

    __slots__ = ("_bytes", "_events", "is_over", "news")

    def begin(self) -> None:
        """Prepare the list of events."""
        self.news = asyncio.Event()
        self.is_over = False
        self._events: list[bytes] = []
        self._bytes = 0

    def push(self, text: PushedText) -> None:
        """Add an event with messages; the id is the position of the listener."""
        self.tell(text.text, self.position)

    def tell(self, text: bytes, offset: int | None = None) -> None:
        """Add an event, after the long event that is being written."""
        if self.deferred_frames is None:
            self._put(in_stream(text, offset))
        else:
            self.deferred_frames.append((text, offset))

    def tell_part(self, text: bytes, offset: int, *, is_first: bool, is_last: bool) -> None:
        """Add a part of a long event."""
        line = in_stream(text, offset).removesuffix(END_OF_EVENT)
        if not is_first:
            line = line.partition(DATA)[2]
        self._put(line + END_OF_EVENT if is_last else line)

    def _put(self, event: bytes) -> None:
        if not event:
            return
        self._events.append(event)
        self._bytes += len(event)
        if self._bytes > WRITTEN_BYTES:
            self.pause()
        self.news.set()

    def close(self, code: int, reason: str) -> None:
        """End the stream after the waiting events."""
        self.is_over = True
        self.news.set()

    def take(self) -> bytes:
        """Remove and return all waiting events."""
        events = b"".join(self._events)
        self._events, self._bytes = [], 0
        self.news.clear()
        return events


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class EventStream:
    """The events of one client until the client or the server ends. The caller must call
    `close`."""

    def __init__(
        self,
        listener: EventListener,
        *,
        leave: Callable[[RoomListener], object],
        seconds: float | None,
    ) -> None:
        self._listener = listener
        self._leave = leave
        self._until_s = math.inf if seconds is None else _now_s() + seconds
        self._is_closed = False

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        """Wait for the next events, or return a heartbeat."""
        listener = self._listener
        remaining_s = self._until_s - _now_s()
        try:
            async with asyncio.timeout(max(0.0, min(SILENCE_S, remaining_s))):
                await listener.news.wait()
        except TimeoutError:
            if remaining_s <= SILENCE_S:
                raise StopAsyncIteration from None
            return HEARTBEAT
        events = listener.take()
        if not events:
            raise StopAsyncIteration
        if not listener.is_ready:
            listener.resume()
        elif listener.is_over:
            listener.news.set()
        return events

    def close(self) -> None:
        """Leave the room, because the connection has ended. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._leave(self._listener)
