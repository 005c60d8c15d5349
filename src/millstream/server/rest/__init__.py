"""REST: every noun over plain HTTP, with JSON, base64 or raw bodies.

One table of endpoints, gathered here from the nouns' modules, builds the routes, the OpenAPI
document and the page of it.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from millstream.server import docs
from millstream.server.core import Core
from millstream.server.docs import pages
from millstream.server.rest import (
    claims,
    cursors,
    forks,
    logs,
    messages,
    queues,
    records,
    replica,
    staging,
    stats,
    transactions,
)
from millstream.server.rest.ask import Ask
from millstream.server.rest.elsewhere import ELSEWHERE
from millstream.server.rest.endpoint import JSON, Answer, Endpoint
from millstream.server.rest.routing import routes_of


def routes(core: Core) -> list[Route]:
    """Everything that REST answers."""
    page()  # built at start, so that a mistake shows then
    return routes_of(core, ENDPOINTS)


@cache
def document_bytes() -> bytes:
    """The OpenAPI document, as `tools/openapi.py` has written it from the table of endpoints."""
    return resources.files(docs).joinpath("openapi.json").read_bytes()


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document of these endpoints."""
    found: dict[str, Any] = msgspec.json.decode(document_bytes())
    return found


@cache
def page() -> pages.Page:
    """The readable page of it."""
    return pages.build(document())


async def _get_document(ask: Ask) -> Response:
    return Response(document_bytes(), media_type=JSON)


async def _get_page(ask: Ask) -> Response:
    found = page()
    return Response(found.html, media_type="text/html", headers=found.headers)


ENDPOINTS: tuple[Endpoint, ...] = (
    *logs.ENDPOINTS,
    *forks.ENDPOINTS,
    *records.ENDPOINTS,
    *cursors.ENDPOINTS,
    *queues.ENDPOINTS,
    *messages.ENDPOINTS,
    *claims.ENDPOINTS,
    *transactions.ENDPOINTS,
    *staging.ENDPOINTS,
    *replica.ENDPOINTS,
    *stats.ENDPOINTS,
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

DOCUMENTED: tuple[Endpoint, ...] = (*ENDPOINTS, *ELSEWHERE)
"""What the document describes."""
