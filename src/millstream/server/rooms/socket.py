"""A room over a WebSocket: JSON texts in both directions.

The feed writes messages directly to the connection, without a task per client. `RoomClient` handles
the client's frames directly as they arrive.
"""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from millstream.errors import MillstreamError
from millstream.server.problems import refuse_handshake
from millstream.server.rooms.client import RoomClient
from millstream.server.rooms.entry import parse_query, room_of_path
from millstream.server.rooms.hub import Hub
from millstream.server.rooms.socket_listener import SocketListener

PATH = "/rooms/{room:path}"


class RoomSocket:
    """The ASGI application at the route of a room's WebSockets."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a client in, and read its frames until it leaves."""
        await receive()  # websocket.connect
        hub = self._hub
        try:
            name = room_of_path(scope["raw_path"])
            request = parse_query(scope["query_string"].decode("latin-1"))
            principal = scope["state"]["principal"]
            entered = await hub.enter(principal, name, request, SocketListener)
        except MillstreamError as error:
            await refuse_handshake(send, error)
            return
        listener = entered.listener
        assert isinstance(listener, SocketListener)
        try:
            await send({"type": "websocket.accept"})
            listener.begin(scope["state"]["socket"], send)
            hub.begin_listening(entered)
            with hub.core.clients.connected(
                "room", principal, scope.get("client"), room=name, user=listener.user
            ):
                await RoomClient(hub, listener, scope["state"], receive).run()
        finally:
            scope["state"]["socket"].on_flow = None
            hub.leave(listener)
