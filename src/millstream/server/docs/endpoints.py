"""Where the document and its page are found, and everything that they describe.

The document is made by a process of its own, once, when it is first asked for: msgspec, having made
schemas of many types, sometimes crashes the interpreter's last collection, and that process leaves
without one.
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
"""The page that shows the document: the same for every client; it asks for the document itself."""


def routes(core: Core) -> list[Paths]:
    """Everything that REST answers, the document included."""
    return [Paths(core, ENDPOINTS)]


@cache
def document_bytes() -> bytes:
    """The OpenAPI document of everything that a server answers."""
    made = subprocess.run([sys.executable, "-m", __package__], capture_output=True, check=True)
    return made.stdout


endpoint = Endpoints("about")


@endpoint("GET /openapi.json")
async def get_open_api(ask: Ask) -> dict[str, Any] | Response:
    """This description, for machines."""
    return Response(await asyncio.to_thread(document_bytes), media_type=JSON)


@endpoint("GET /docs", media_types=("text/html",))
async def get_docs(ask: Ask) -> Response:
    """This description, for people.

    Needs no token: the page asks for one, and sends it when it asks for the description.
    """
    return pages.show(ask.request, PAGE)


ENDPOINTS = (*REST, *endpoint)
"""Everything that a server answers, but for the socket."""
