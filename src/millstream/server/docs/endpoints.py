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
from starlette.routing import Route

from millstream.server.core import Core
from millstream.server.docs import pages
from millstream.server.observe.health import Health
from millstream.server.rest import ENDPOINTS as REST
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import JSON, Answer, Endpoint
from millstream.server.rest.routing import routes_of


def routes(core: Core) -> list[Route]:
    """Everything that REST answers, the document included."""
    return routes_of(core, ENDPOINTS)


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


async def _get_document(ask: Ask) -> Response:
    return Response(await asyncio.to_thread(document_bytes), media_type=JSON)


async def _get_page(ask: Ask) -> Response:
    found = await asyncio.to_thread(page)
    return Response(found.html, media_type="text/html", headers=found.headers)


ENDPOINTS: tuple[Endpoint, ...] = (
    *REST,
    Endpoint(
        method="GET",
        path="/openapi.json",
        name="getOpenApi",
        summary="This description, for machines",
        run=_get_document,
        tag="about",
        answers=(Answer(dict[str, Any]),),
    ),
    Endpoint(
        method="GET",
        path="/docs",
        name="getDocs",
        summary="This description, for people",
        run=_get_page,
        tag="about",
        answers=(Answer(None, media_types=("text/html",)),),
    ),
)

DOCUMENTED: tuple[Endpoint, ...] = (
    *ENDPOINTS,
    Endpoint(
        method="GET",
        path="/health",
        name="getHealth",
        summary="Whether the server can do its work: healthy, warning or critical",
        detail="Needs no token; the checks are shown to tokens that may read the store.",
        run=None,
        tag="store",
        answers=(Answer(Health), Answer(Health, "Critical", status=503)),
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        name="getMetrics",
        summary="How the server, its store and its queues stand, for Prometheus",
        run=None,
        tag="store",
        answers=(Answer(None, media_types=("text/plain", "application/openmetrics-text")),),
    ),
)
"""What the document describes: also what has a route of its own."""
