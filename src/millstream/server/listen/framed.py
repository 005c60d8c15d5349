"""Framed connections: our own frames on a bare connection, after an upgrade to `millstream`.

The application sees a WebSocket, with the same guard, routes and conversations. Buffers of a client
are bounded. A frame over the limit is refused by its head. A frame that stalls, or answers that are
not read, end the connection. The kernel notices a dead peer by its keep-alive.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.types import Message, Scope
from uvicorn.protocols.utils import ClientDisconnected, get_local_addr, get_remote_addr, is_ssl

from millstream.server.listen.connections import Connections
from millstream.server.listen.intake import Intake
from millstream.wire import commands as wire
from millstream.wire import framing
from millstream.wire.framing import BadFrame, Unframer

PATH = b"/socket"
"""The address of frames; a wish for an upgrade is ignored at other addresses."""

ADMIT_S = 20.0
"""How long the application may take to admit a client; then the server cuts the connection."""

LOOK_S = 20.0
PROGRESS_BYTES_MIN = 64 * 1024
"""How often the server looks at an unfinished frame, which must grow by so many bytes between two
looks."""

CLOSE_S = 5.0
"""How long a client may take to hang up after a close frame."""

SLICE_BYTES = 64 * 1024
"""Bytes per parsing step; most frames fit."""

QUEUED_MAX = 16
"""Frames that wait for the application; beyond, the client is not read."""

GOING_AWAY = 1001
NOT_A_FRAME = 1007
TOO_LARGE = 1009

_logger = logging.getLogger("millstream.server")


class FramedConnection(asyncio.Protocol):
    """The connection of a client that speaks frames; it replaces the HTTP connection."""

    def __init__(
        self,
        app: Any,
        connections: Connections,
        transport: Any,
        scope: Scope,
        *,
        frame_bytes_max: int,
    ) -> None:
        self.transport = transport
        self._app = app
        self._loop = asyncio.get_running_loop()
        self._connections = connections
        self._scope = scope
        self._unframer = Unframer(frame_bytes_max)
        self._frames: deque[Message] = deque([{"type": "websocket.connect"}])
        self._take: Callable[[bytes], bool] | None = None
        self._taker: asyncio.Future[None] | None = None
        self._reads = True
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_open = False
        """Whether the upgrade was granted."""
        self._is_over = False
        """Whether a side has closed the connection, or is gone."""
        self._refusal: Message | None = None
        self._pong = b""
        """The last pong, while the client does not read."""
        self._intake = Intake(
            transport, self._parse, slice_bytes=SLICE_BYTES, may_read=lambda: self._reads
        )
        self._received = 0
        """Bytes since the last look."""
        self._was_between = True
        self._unsent = 0
        self._timer = self._loop.call_later(ADMIT_S, transport.abort)

    @classmethod
    def take_over(
        cls,
        app: Any,
        connections: Connections,
        transport: Any,
        scope: Scope,
        *,
        frame_bytes_max: int,
    ) -> None:
        """Take an upgraded connection over from HTTP."""
        inner = _socket_scope(scope, transport)
        made = cls(app, connections, transport, inner, frame_bytes_max=frame_bytes_max)
        connections.connections.add(made)
        _keep_alive(transport.get_extra_info("socket"))
        transport.set_protocol(made)
        connections.watch(made._loop.create_task(made._serve()))

    # Events of the transport.

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application, and free the place of the connection."""
        self._timer.cancel()
        self._connections.connections.discard(self)
        self._writable.set()
        self._end(1006)

    def shutdown(self) -> None:
        """Do nothing: the conversation ends by `Core.closing`."""

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than it is answered."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the client has read nearly everything, and send a waiting pong."""
        self._writable.set()
        pong, self._pong = self._pong, b""
        if pong and not self._is_over:
            self.transport.write(pong)

    def data_received(self, data: bytes) -> None:
        """Feed bytes to the parser, a few frames per turn of the loop."""
        self._received += len(data)
        self._intake.feed(data)

    def _parse(self, data: bytes) -> int:
        """Handle the complete frames of a slice; return their number."""
        if self._is_over or not self._is_open:
            return 0  # nothing may come before the answer, nor counts after the end
        try:
            frames = self._unframer.feed(data)
            for kind, payload in frames:
                if kind == framing.DATA:
                    if not self._is_taken(payload):
                        self._hand_on({"type": "websocket.receive", "bytes": payload})
                elif kind == framing.PING:
                    self._answer_ping(payload)
                elif kind == framing.CLOSE:
                    self._end(framing.read_close(payload)[0])
                    self.transport.close()
        except BadFrame as error:
            self._close(TOO_LARGE if error.is_too_large else NOT_A_FRAME, error.reason)
            self._end(1006)
            return 0
        return len(frames)

    def _answer_ping(self, payload: bytes) -> None:
        """Answer a ping; a client that does not read gets the last pong only."""
        pong = framing.frame(payload, framing.PONG)
        if self._writable.is_set():
            self.transport.write(pong)
        else:
            self._pong = pong

    # Calls of the application.

    async def _serve(self) -> None:
        self._scope["state"] |= {
            "abort": self.transport.abort,
            "write": self._write,
            "listen": self._listen,
            "is_gone": lambda: self._is_over,
        }
        try:
            await self._app(self._scope, self._receive, self._send)
        except ClientDisconnected:
            pass
        except Exception:
            _logger.exception("socket_failed")
        if not self._is_over:
            self.transport.close() if self._is_open else self._refuse(500, [], b"")

    async def _receive(self) -> Message:
        while not self._frames:
            self._taker = self._loop.create_future()
            try:
                await self._taker
            finally:
                self._taker = None
        message = self._frames.popleft()
        if not self._reads and not self._frames:
            self._reads = True
            self._intake.resume_reading()
        return message

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if not self._writable.is_set():
            await self._writable.wait()
        if self._is_over:
            if kind == "websocket.close":
                return
            raise ClientDisconnected
        if kind == "websocket.send":
            self.transport.writelines(framing.pieces(message["bytes"]))
        elif kind == "websocket.accept":
            self._accept(message)
        elif kind == "websocket.close":
            if self._is_open:
                self._close(message.get("code", 1000), message.get("reason") or "")
                self._end(1000)
            else:
                self._refuse(403, [], b"")
        elif kind == "websocket.http.response.start":
            self._refusal = message
        elif self._refusal is not None:
            self._refuse(self._refusal["status"], self._refusal["headers"], message["body"])

    def _write(self, frame: bytes) -> bool:
        """Send a frame of data at once; False if the client does not read."""
        if self._is_over or not self._writable.is_set():
            return False
        self.transport.writelines(framing.pieces(frame))
        return True

    def _listen(self, take: Callable[[bytes], bool]) -> None:
        """Hand frames to `take` as they come, while no earlier frame waits; False lets a frame wait."""
        self._take = take

    def _is_taken(self, frame: bytes) -> bool:
        """Whether the application has taken a frame directly, and no earlier frame waits."""
        if self._take is None or self._frames:
            return False
        if self._taker is None or self._taker.done():
            return False  # the application is still busy with the frame before
        return self._take(frame)

    def _accept(self, message: Message) -> None:
        self._is_open = True
        self._timer.cancel()
        self._timer = self._loop.call_later(LOOK_S, self._look)
        names = [(b"connection", b"upgrade"), (b"upgrade", framing.UPGRADE.encode())]
        self.transport.write(_head(101, [*names, *message.get("headers", ())]))

    def _refuse(self, status: int, headers: Any, body: bytes) -> None:
        self._is_over = True
        names = [(name, value) for name, value in headers if name != b"content-length"]
        names += [(b"connection", b"close"), (b"content-length", b"%d" % len(body))]
        self.transport.write(_head(status, names) + body)
        self._timer.cancel()
        self._timer = self._loop.call_later(CLOSE_S, self.transport.abort)
        self.transport.close()

    # Frames, and the end.

    def _hand_on(self, message: Message) -> None:
        self._frames.append(message)
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)
        if self._reads and len(self._frames) > QUEUED_MAX:
            self._reads = False
            self.transport.pause_reading()

    def _close(self, code: int, reason: str) -> None:
        """Send a close frame with a reason; later bytes of the client are ignored."""
        if self._is_over:
            return
        self.transport.write(framing.close_frame(code, reason))
        if not self._reads:
            self._reads = True
            self._intake.resume_reading()
        self._timer.cancel()
        self._timer = self._loop.call_later(CLOSE_S, self.transport.abort)
        if code <= GOING_AWAY:  # else what is not read yet would destroy the reason on its way
            self.transport.close()

    def _end(self, code: int) -> None:
        if not self._is_over:
            self._is_over = True
            self._hand_on({"type": "websocket.disconnect", "code": code})

    def _look(self) -> None:
        """Cut a client that does not read, or does not finish a frame."""
        unsent, is_between = self.transport.get_write_buffer_size(), self._unframer.is_between
        stuck = 0 < self._unsent <= unsent
        slow = not (is_between or self._was_between) and self._received < PROGRESS_BYTES_MIN
        if stuck or slow:
            self.transport.abort()
            return
        if not self._received and not unsent:
            self.transport.write(framing.frame(b"", framing.PING))  # for proxies in between
        self._unsent, self._was_between, self._received = unsent, is_between, 0
        self._timer = self._loop.call_later(LOOK_S, self._look)


def wants_frames(method: str, url: bytes, upgrade: bytes | None) -> bool:
    """Whether a request asks for an upgrade to frames."""
    is_upgrade = upgrade == framing.UPGRADE.encode() and method == "GET"
    return is_upgrade and url.partition(b"?")[0] == PATH


def _socket_scope(scope: Scope, transport: Any) -> Scope:
    """Return the scope of a WebSocket for a request that asks for an upgrade."""
    return {
        **scope,
        "type": "websocket",
        "scheme": "wss" if is_ssl(transport) else "ws",
        "server": get_local_addr(transport),
        "client": get_remote_addr(transport),
        "path": scope["root_path"] + PATH.decode(),
        "raw_path": scope["root_path"].encode() + PATH,
        "subprotocols": [wire.SUBPROTOCOL],
        "extensions": {"websocket.http.response": {}},
    }


def _keep_alive(sock: Any) -> None:
    """Let the kernel detect a dead peer."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _head(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode())]
    return b"\r\n".join([*lines, *(name + b": " + value for name, value in headers), b"", b""])
