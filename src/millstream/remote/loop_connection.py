"""The connection of coroutines: a connection in an event loop, and its incoming frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from millstream.errors import InvalidInput
from millstream.remote.address import Address
from millstream.remote.codec import Codec, ConnectionLost, Goodbye, Refused
from millstream.remote.thread_connection import NoTunnel, find_tunnel, keep_alive, reach_tunnel

LOOKS = 2
"""How many checks for silence happen within the permitted silence."""

CLOSE_S = 2.0
"""How long a server may take to close the connection."""


class LoopConnection(asyncio.Protocol):
    """A connection: frames are sent at once, and received frames are handed to a callback."""

    def __init__(self, codec: Codec, *, ping_s: float) -> None:
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._is_full = False
        self._came: list[bytes] = []
        self._news: asyncio.Future[None] = self._loop.create_future()
        """Done when the first frame, or the end, has come."""
        self._on_frame: Callable[[bytes], None] | None = None
        self._on_space: Callable[[], None] | None = None
        self._error: Exception | None = None
        self._silent = 0
        """The number of checks since the last bytes."""
        self._look_s = ping_s / LOOKS
        self._timer = self._loop.call_later(self._look_s, self._look)
        self.lost: asyncio.Future[Exception] = self._loop.create_future()
        """Why the connection ended, once it has."""

    @classmethod
    async def open(cls, address: Address, codec: Codec) -> LoopConnection:
        """Connect, and request the upgrade."""
        loop = asyncio.get_running_loop()
        where: dict[str, Any] = {"host": address.host, "port": address.port}
        if (tunnel := find_tunnel(address)) is not None:
            try:
                sock = await asyncio.to_thread(reach_tunnel, address, tunnel)
            except NoTunnel as error:
                raise InvalidInput(str(error)) from error
            where = {"sock": sock}
        if address.tls is not None:
            where |= {"ssl": address.tls, "server_hostname": address.host}
        _, connection = await loop.create_connection(
            lambda: cls(codec, ping_s=address.ping_s), **where
        )
        return connection

    async def first(self) -> bytes:
        """Return the server's first frame."""
        while not self._came:
            if self._error is not None:
                raise self._error
            await self._news
        return self._came.pop(0)

    def begin(self, on_frame: Callable[[bytes], None], on_space: Callable[[], None]) -> None:
        """Pass received frames to `on_frame`, and call `on_space` when frames can be sent again."""
        self._on_frame, self._on_space = on_frame, on_space
        came, self._came = self._came, []
        for frame in came:
            on_frame(frame)

    def send(self, frame: bytes) -> bool:
        """Send a frame; False if the send buffer is full, or the connection has ended."""
        if self._is_full or self._error is not None:
            return False
        self._transport.write(self._codec.frame(frame))
        return True

    @property
    def has_space(self) -> bool:
        """Whether a frame can be sent now."""
        return not self._is_full and self._error is None

    async def close(self) -> None:
        """Send the last frame, and close the connection."""
        if self._error is None:
            self._transport.write(self._codec.goodbye())
        self._transport.close()
        done, _ = await asyncio.wait([self.lost], timeout=CLOSE_S)
        if not done:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        self._end(ConnectionLost("it was closed here"))
        self._transport.abort()

    # Callbacks of the transport.

    def connection_made(self, transport: Any) -> None:
        """Request the upgrade."""
        self._transport = transport
        keep_alive(transport.get_extra_info("socket"))
        transport.write(self._codec.request())

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self._end(ConnectionLost(str(exc) if exc is not None else "the other side hung up"))

    def pause_writing(self) -> None:
        """Note that the send buffer is full."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Note that the send buffer has space again."""
        self._is_full = False
        if self._on_space is not None:
            self._on_space()

    def data_received(self, data: bytes) -> None:
        """Pass on the complete frames."""
        self._silent = 0
        try:
            frames = self._codec.feed(data)
            if replies := self._codec.replies():
                self._transport.write(replies)
            for frame in frames:
                if self._on_frame is None:
                    self._came.append(frame)
                else:
                    self._on_frame(frame)
        except (Refused, Goodbye, InvalidInput) as error:
            self._end(error)
            self._transport.abort()
            return
        if self._came and not self._news.done():
            self._news.set_result(None)

    def _end(self, error: Exception) -> None:
        if self._error is not None:
            return
        self._error = error
        self._timer.cancel()
        self.lost.set_result(error)
        if not self._news.done():
            self._news.set_result(None)

    def _look(self) -> None:
        """Ping a silent server; close the connection if it stays silent."""
        if self._codec.is_open:
            self._silent += 1
        if self._silent >= 2 * LOOKS:
            self.abort()
            return
        if self._silent == LOOKS:
            self._transport.write(self._codec.ping())
        self._timer = self._loop.call_later(self._look_s, self._look)
