"""The application: every route of a server, joined, behind the guard."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import ASGIApp

from millstream.server.core import Core
from millstream.server.docs.endpoints import routes
from millstream.server.http.guard import Guard
from millstream.server.problems import nothing_here
from millstream.server.socket.socket import PATH, Socket


def make_app(core: Core) -> ASGIApp:
    """Everything that one port answers."""
    joined: list[BaseRoute] = [WebSocketRoute(PATH, Socket(core)), *routes(core)]
    return Guard(Starlette(routes=joined, exception_handlers={404: nothing_here}), core)
