"""The application: every route of a server, joined, behind the guard."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from millstream.errors import MillstreamError
from millstream.server import problems
from millstream.server.core import Core
from millstream.server.docs.endpoints import routes
from millstream.server.http.guard import Guard
from millstream.server.socket.socket import SocketRoute


def make_app(core: Core) -> ASGIApp:
    """Everything that one port answers."""
    joined: list[BaseRoute] = [SocketRoute(core), *routes(core)]
    answers: dict[Any, Any] = {
        HTTPException: problems.on_http_exception,
        MillstreamError: problems.on_millstream_error,
    }
    return Guard(Starlette(routes=joined, exception_handlers=answers), core)
