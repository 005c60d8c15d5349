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

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.server.core import Core
from millstream.server.docs import pages
from millstream.server.rest import ENDPOINTS as REST
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import JSON, Endpoints
from millstream.server.rest.routing import Paths


def routes(core: Core) -> list[BaseRoute]:
    """Everything that REST answers, the document included."""
    return [Paths(core, ENDPOINTS)]


@cache
def document_bytes() -> bytes:
    """The OpenAPI document of everything that a server answers."""
    made = subprocess.run([sys.executable, "-m", __package__], capture_output=True, check=True)
    return made.stdout


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document as a value."""
    found: dict[str, Any] = msgspec.json.decode(document_bytes())
    return found


@cache
def page() -> pages.Page:
    """The readable page of it."""
    return pages.build(document())


endpoint = Endpoints("about")


@endpoint("GET /openapi.json")
async def get_open_api(ask: Ask) -> dict[str, Any] | Response:
    """This description, for machines."""
    return Response(await asyncio.to_thread(document_bytes), media_type=JSON)


@endpoint("GET /docs", media_types=("text/html",))
async def get_docs(ask: Ask) -> Response:
    """This description, for people."""
    found = await asyncio.to_thread(page)
    return Response(found.html, media_type="text/html", headers=found.headers)


ENDPOINTS = (*REST, *endpoint)
"""Everything that a server answers, but for the socket."""
