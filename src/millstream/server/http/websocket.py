"""WebSockets, as the server holds them below any request: cut when their reader stops reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket that can be cut, and is cut when its reader has stopped reading."""

    _unsent_at_ping = 0
    on_flow: Callable[[bool], None] | None = None
    """Called when the client takes no more for now (False), and when it takes more again (True)."""
    on_text: Callable[[str], None] | None = None
    """Takes texts as they come, instead of the application's `receive`: it must be quick, and pauses
    the connection if it cannot keep up."""

    async def run_asgi(self) -> None:
        """Serve it; the application finds in its state how to cut the connection, and itself: so it
        can write frames that are encoded already."""
        self.scope["state"]["abort"] = self.transport.abort
        self.scope["state"]["is_gone"] = lambda: self.disconnected or self.transport.is_closing()
        self.scope["state"]["socket"] = self
        await super().run_asgi()

    def write(self, frames: bytes) -> None:
        """Write whole, unmasked frames, the same bytes for many clients; nothing once it closes."""
        if not (self.close_sent or self.disconnected or self.transport.is_closing()):
            self.transport.write(frames)

    def send_receive_event_to_app(self) -> None:
        """A message has come whole: a text is heard at once, if something hears it."""
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
        if self.read_paused and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """The client takes no more for now."""
        super().pause_writing()
        if self.on_flow is not None:
            self.on_flow(False)

    def resume_writing(self) -> None:
        """The client takes more."""
        super().resume_writing()
        if self.on_flow is not None:
            self.on_flow(True)

    async def send(self, message: Any) -> None:
        """Send what the application says; a handshake that it has refused is over, and no error."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True

    def send_keepalive_ping(self) -> None:
        """Ask whether the other side is there; remember how much it has yet to read."""
        self._unsent_at_ping = self.transport.get_write_buffer_size()
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """Let go of a silent peer, but not of one that is slowly working through its answers."""
        if 0 < self.transport.get_write_buffer_size() < self._unsent_at_ping:
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self.transport.abort()
