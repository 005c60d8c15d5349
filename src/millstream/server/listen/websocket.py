"""WebSockets: bounds and timeouts of their connections.

Everything that a client could hold has a bound. A handshake is answered in time, or cut. Frames are
handled a few per turn of the loop. Of pings whose pongs are not read, the last ones alone are
answered. A reader that has stopped reading is cut, also behind a close frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from millstream.server.listen.intake import Intake

LOOK_S = 20.0
"""The timeout of a handshake, and how often the server looks at a closing connection."""

SLICE_BYTES = 2 * 1024
"""Bytes per parsing step: up to 340 frames."""

PASSED_BYTES_MAX = 256 * 1024
"""Bytes that a client may send after our close frame; beyond, the connection is cut."""


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket that can be cut, and is cut when its reader has stopped reading."""

    _unsent_at_ping = 0
    _pongs = b""
    """Pongs that wait until the client reads."""
    _was_closing = False
    _passed_bytes = 0
    """Bytes since our close frame."""
    _frames_handled = 0
    on_flow: Callable[[bool], None] | None = None
    """Called when the client takes no more for now (False), and when it takes more again (True)."""
    on_text: Callable[[str], None] | None = None
    """Takes texts as they come, instead of the application's `receive`: it must be quick, and pauses
    the connection if it cannot keep up."""

    def connection_made(self, transport: Any) -> None:
        """Begin to read; the client has a deadline until it is admitted."""
        super().connection_made(transport)
        self._intake = Intake(
            transport, self._parse, slice_bytes=SLICE_BYTES, may_read=lambda: not self.read_paused
        )
        self._looking: asyncio.TimerHandle = self.loop.call_later(LOOK_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the place to another connection."""
        self._looking.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Do nothing: the conversation, or the room, ends by `Core.closing`."""

    def _look(self) -> None:
        """Cut a client that was not admitted in time, or does not read that this is the end."""
        is_closing = self.transport.is_closing()
        if not self.handshake_complete or (is_closing and self._was_closing):
            self.transport.abort()
            return
        self._was_closing = is_closing
        self._looking = self.loop.call_later(LOOK_S, self._look)

    def data_received(self, data: bytes) -> None:
        """Feed bytes to the parser, a few frames per turn of the loop."""
        self._intake.feed(data)

    def _parse(self, data: bytes) -> int:
        """Handle the complete frames of a slice; return their number."""
        self._frames_handled = 0
        if self.close_sent:
            self._passed_bytes += len(data)
            if self._passed_bytes > PASSED_BYTES_MAX:
                self.transport.abort()
                return 0
        super().data_received(data)
        if not self.handshake_initiated and self.conn.handshake_exc is not None:
            self._refuse_handshake()
        return self._frames_handled

    def handle_events(self) -> None:
        """Handle frames, and count them."""
        self._frames_handled = len(self.conn.events)
        super().handle_events()

    def _refuse_handshake(self) -> None:
        """Send the refusal of a handshake that the WebSocket parser has refused."""
        self.handshake_complete = self.close_sent = True
        if not self.transport.is_closing():
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def handle_ping(self) -> None:
        """Answer pings; a client that does not read gets the last pongs only."""
        pongs = b"".join(self.conn.data_to_send())
        if not pongs:
            return
        if self.writable.is_set():
            self.transport.write(pongs)
        else:
            self._pongs = pongs

    async def receive(self) -> Any:
        """Return the next message of the client; reading goes on once all messages are taken."""
        message = await self.queue.get()
        if self.queue.empty():
            self.resume_reading()
        return message

    async def run_asgi(self) -> None:
        """Run the application, with this connection and its `abort` in the state of the request.

        So the application can write frames that are encoded already.
        """
        self.scope["state"]["abort"] = self.transport.abort
        self.scope["state"]["is_gone"] = lambda: self.disconnected or self.transport.is_closing()
        self.scope["state"]["socket"] = self
        await super().run_asgi()

    def write(self, frames: bytes) -> None:
        """Write unmasked frames, the same bytes for many clients, unless the connection closes."""
        if not (self.close_sent or self.disconnected or self.transport.is_closing()):
            self.transport.write(frames)

    def send_receive_event_to_app(self) -> None:
        """Hand a complete text to `on_text`, or any message to the application."""
        hear = self.on_text
        if hear is not None and self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                text = b"".join(self.frames).decode()
            except UnicodeDecodeError:
                pass  # the connection is ended for it, below
            else:
                self.frames = []
                hear(text)
                return
        super().send_receive_event_to_app()

    def pause_reading(self) -> None:
        """Read nothing more for now."""
        if not (self.read_paused or self.transport.is_closing()):
            self.read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self.read_paused:
            self.read_paused = False
            self._intake.resume_reading()

    def pause_writing(self) -> None:
        """The client takes no more for now."""
        super().pause_writing()
        if self.on_flow is not None:
            self.on_flow(False)

    def resume_writing(self) -> None:
        """The client takes more."""
        super().resume_writing()
        pongs, self._pongs = self._pongs, b""
        if pongs and not (self.close_sent or self.transport.is_closing()):
            self.transport.write(pongs)
        if self.on_flow is not None:
            self.on_flow(True)

    async def send(self, message: Any) -> None:
        """Send what the application says; a handshake that it has refused is over, and no error."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True

    def send_keepalive_ping(self) -> None:
        """Ping the client, and remember how many bytes it has not read."""
        self._unsent_at_ping = self.transport.get_write_buffer_size()
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """Cut a silent client, unless it slowly reads its answers."""
        if 0 < self.transport.get_write_buffer_size() < self._unsent_at_ping:
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self.transport.abort()
