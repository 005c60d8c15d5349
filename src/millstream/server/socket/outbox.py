"""The outbox of a socket: answers on their way to one client.

What is answered by one commit, or in one turn of the loop, goes into one frame. Frames wait while the client reads
slowly, but only so many bytes of them: then the outbox is full, and the connection is cut.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from starlette.types import Send

from millstream.errors import MillstreamError
from millstream.wire import commands as wire

FRAME_BYTES = 1024 * 1024
"""A frame is larger only if one answer is: so a slow reader is seen to be slow."""

Sent = Callable[[], object]
Unsent = Callable[[], object]
"""Called in the place of `Sent`, if the connection ends before an answer is sent."""
Write = Callable[[bytes], bool]
Soon = Callable[[Callable[[], object]], object]
"""Has something called once the answers that are given just now are all there."""


class Outbox:
    """Answers that are done, and frames that are not yet sent."""

    def __init__(
        self, send: Send, bytes_max: int, write: Write | None = None, *, soon: Soon
    ) -> None:
        self.is_full = False
        """Whether the client does not read: more is waiting for it than is kept."""
        self._send = send
        self._write = write
        """Sends a frame at once, if there is room for it; not every connection can."""
        self._sender: asyncio.Task[Any] | None = None
        self._blocked = False
        """While a frame waits for the client to read those before it."""
        self._is_closed = False
        self._bytes_max = bytes_max
        self._soon = soon
        self._done: list[tuple[int, Any]] = []
        self._when_sent: list[Sent] = []
        self._unsent: list[Unsent] = []
        self._sending: list[Unsent] = []
        """Of the frame that waits for the client to read those before it."""
        self._frames: deque[tuple[bytes, list[Sent], list[Unsent]]] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._emptied: asyncio.Event | None = None
        """Set when all is sent; made once that is waited for."""

    def answer(
        self,
        number: int,
        found: Any,
        when_sent: Sent | None = None,
        unsent: Unsent | None = None,
    ) -> None:
        """Send an answer soon, together with what else is done by then."""
        if not self._done:
            self._soon(self._flush)
        self._done.append((number, found))
        if when_sent is not None:
            self._when_sent.append(when_sent)
        if unsent is not None:
            self._unsent.append(unsent)

    def put(
        self,
        frame: bytes,
        when_sent: list[Sent] | None = None,
        unsent: list[Unsent] | None = None,
    ) -> None:
        """Send a frame after those before it."""
        is_next = self._write is not None and not (self._blocked or self._frames)
        if is_next and self._write(frame):  # type: ignore[misc]
            for call in when_sent or ():
                call()
            if self._emptied is not None:
                self._look_if_empty()
            return
        self._frames.append((frame, when_sent or [], unsent or []))
        self._bytes += len(frame)
        self._news.set()
        if self._blocked and self._bytes > self._bytes_max:
            self.is_full = True
            if self._sender is not None:
                self._sender.cancel()

    async def run(self) -> None:
        """Send frames as fast as they are read; ends when the outbox is full."""
        self._sender = asyncio.current_task()
        while True:
            await self._news.wait()
            self._news.clear()
            while self._frames:
                frame, when_sent, unsent = self._frames.popleft()
                self._bytes -= len(frame)
                self._blocked = True
                self._sending = unsent
                await self._send({"type": "websocket.send", "bytes": frame})
                self._sending = []
                self._blocked = False
                for call in when_sent:
                    call()
            self._look_if_empty()

    async def drained(self) -> None:
        """Wait until everything is sent."""
        if self._done or self._frames or self._blocked:
            self._emptied = asyncio.Event()
            await self._emptied.wait()

    def _look_if_empty(self) -> None:
        """End that wait if nothing is left to be sent."""
        if self._emptied is not None and not self._done:
            self._emptied.set()

    def close(self) -> None:
        """The connection has ended: what was not sent never will be."""
        self._is_closed = True
        queued = [one for _, _, unsent in self._frames for one in unsent]
        for call in (*self._sending, *queued, *self._unsent):
            call()
        self._sending, self._unsent = [], []
        self._frames.clear()

    def _flush(self) -> None:
        done, self._done = self._done, []
        when_sent, self._when_sent = self._when_sent, []
        if self._is_closed:
            return
        unsent, self._unsent = self._unsent, []
        frame = _encode(done)
        if len(frame) > FRAME_BYTES and len(done) > 1:
            *others, frame = _halves(done)
            for one in others:
                self.put(one)
        self.put(frame, when_sent, unsent)


def _halves(done: list[tuple[int, Any]]) -> list[bytes]:
    """Answers as several frames: two, or more if there is much of them."""
    middle = len(done) // 2
    found: list[bytes] = []
    for half in (done[:middle], done[middle:]):
        frame = _encode(half)
        found += _halves(half) if len(frame) > FRAME_BYTES and len(half) > 1 else [frame]
    return found


def _encode(done: list[tuple[int, Any]]) -> bytes:
    try:
        return wire.encode_answers(done)
    except Exception:
        return wire.encode_answers([(number, _encodable(number, found)) for number, found in done])


def _encodable(number: int, found: Any) -> Any:
    try:
        wire.encode_answers([(number, found)])
    except Exception as error:
        return MillstreamError(f"an answer that cannot be sent: {type(error).__name__}")
    return found
