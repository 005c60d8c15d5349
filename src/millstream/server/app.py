"""The HTTP application: all routes of the HTTP port, behind the guard."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import BaseRoute, WebSocketRoute

from millstream.server.core import Core
from millstream.server.docs.endpoints import routes
from millstream.server.gateways.sqs.gateway import SqsGateway
from millstream.server.gateways.sqs.road import SqsRoads
from millstream.server.listen.guard import Guard
from millstream.server.pages import WebPages
from millstream.server.problems import NoSocket, nothing_here
from millstream.server.rest.hot import HotEndpoints
from millstream.server.rooms.hub import Hub
from millstream.server.rooms.socket import PATH as ROOM_PATH
from millstream.server.rooms.socket import RoomSocket
from millstream.server.socket.socket import PATH, Socket


def make_app(core: Core, hub: Hub | None = None) -> Guard:
    """Build the routes of the HTTP port, behind the guard."""
    pages = WebPages(core.settings.origins)
    hub = hub or Hub(core, core.settings.instance or "here")
    (paths,) = routes(core)
    joined: list[BaseRoute] = [
        WebSocketRoute(PATH, Socket(core)),
        WebSocketRoute(ROOM_PATH, RoomSocket(hub)),
        paths,
        pages,
        WebSocketRoute("/{path:path}", NoSocket()),
    ]
    guard = Guard(Starlette(routes=joined, exception_handlers={404: nothing_here}), core)
    sqs = SqsRoads(SqsGateway(core))
    guard.foreign = sqs
    guard.hot = HotEndpoints(
        core, guard, paths, sqs
    )  # assigned, since it asks the guard for principals
    return guard
