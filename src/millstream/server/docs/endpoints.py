"""The endpoints of the OpenAPI document and the API page, and the table of all endpoints.

A child process makes the document, once, at the first request. After making schemas of many types,
msgspec sometimes crashes the interpreter's last garbage collection; the child process exits without
that collection.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import cache
from typing import Any

from starlette.responses import Response

from millstream.server import pages
from millstream.server.core import Core
from millstream.server.rest import ENDPOINTS as REST
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import JSON, Endpoints
from millstream.server.rest.routing import Paths

PAGE = "api/index.html"
"""The API page: the same for every client; it loads the document by itself."""


def routes(core: Core) -> list[Paths]:
    """Return the routes of all REST endpoints, including the document's."""
    return [Paths(core, ENDPOINTS)]


@cache
def document_bytes() -> bytes:
    """Return the OpenAPI document of all endpoints of a server."""
    child = subprocess.run([sys.executable, "-m", __package__], capture_output=True, check=True)
    return child.stdout


endpoint = Endpoints("about")


@endpoint("GET /openapi.json")
async def get_open_api(ask: Ask) -> dict[str, Any] | Response:
    """Download this API description as an OpenAPI document."""
    return Response(await asyncio.to_thread(document_bytes), media_type=JSON)


@endpoint("GET /docs", media_types=("text/html",))
async def get_docs(ask: Ask) -> Response:
    """Show this API description as a web page.

    This endpoint needs no token: the page asks the user for a token and sends it when it loads the
    description.
    """
    return pages.show(ask.request, PAGE)


ENDPOINTS = (*REST, *endpoint)
"""All endpoints of a server, without the socket."""
