"""The outbox of a socket: the answers and frames that a client has not read yet.

Answers of the same commit, or of the same turn of the loop, share a frame. Frames wait while the
client reads slowly. The bytes of waiting frames are bounded: a full outbox cuts the connection.
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
"""The size of a frame, unless a single answer is larger; small frames reveal slow readers."""

Sent = Callable[[], object]
Unsent = Callable[[], object]
"""Called instead of `Sent` if the connection ends before the answer is sent."""
Write = Callable[[bytes], bool]
Soon = Callable[[Callable[[], object]], object]
"""Schedules a call after the current answers."""


class Outbox:
    """Finished answers and unsent frames of one connection."""

    def __init__(
        self, send: Send, bytes_max: int, write: Write | None = None, *, soon: Soon
    ) -> None:
        self.is_full = False
        """Whether more bytes wait than the bound allows, because the client does not read."""
        self._send = send
        self._write = write
        """Sends a frame at once, if the client reads; not every connection has this."""
        self._sender: asyncio.Task[Any] | None = None
        self._blocked = False
        """Whether a frame waits for the client to read earlier frames."""
        self._is_closed = False
        self._bytes_max = bytes_max
        self._soon = soon
        self._done: list[tuple[int, Any]] = []
        self._when_sent: list[Sent] = []
        self._unsent: list[Unsent] = []
        self._sending: list[Unsent] = []
        """The callbacks of the frame that waits."""
        self._frames: deque[tuple[bytes, list[Sent], list[Unsent]]] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._emptied: asyncio.Event | None = None
        """Set when all frames are sent; made by the first caller that waits."""

    def answer(
        self,
        number: int,
        answer: Any,
        when_sent: Sent | None = None,
        unsent: Unsent | None = None,
    ) -> None:
        """Send an answer soon, in a frame with other answers."""
        if not self._done:
            self._soon(self._flush)
        self._done.append((number, answer))
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
        """Send a frame after all earlier frames."""
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
        """End the wait of `drained` if all frames are sent."""
        if self._emptied is not None and not self._done:
            self._emptied.set()

    def close(self) -> None:
        """Call the `unsent` callbacks of all answers: the connection has ended."""
        self._is_closed = True
        queued = [call for _, _, unsent in self._frames for call in unsent]
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
            *earlier, frame = _halves(done)
            for full_frame in earlier:
                self.put(full_frame)
        self.put(frame, when_sent, unsent)


def _halves(done: list[tuple[int, Any]]) -> list[bytes]:
    """Split answers into two frames, and large halves again."""
    middle = len(done) // 2
    frames: list[bytes] = []
    for half in (done[:middle], done[middle:]):
        frame = _encode(half)
        frames += _halves(half) if len(frame) > FRAME_BYTES and len(half) > 1 else [frame]
    return frames


def _encode(done: list[tuple[int, Any]]) -> bytes:
    try:
        return wire.encode_answers(done)
    except Exception:
        return wire.encode_answers(
            [(number, _encodable(number, answer)) for number, answer in done]
        )


def _encodable(number: int, answer: Any) -> Any:
    try:
        wire.encode_answers([(number, answer)])
    except Exception as error:
        return MillstreamError(f"an answer that cannot be sent: {type(error).__name__}")
    return answer
