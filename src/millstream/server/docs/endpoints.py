"""The endpoints of the OpenAPI document and the API page, and the table of all endpoints.

`make generate` writes the document to `openapi.json`. Making it takes two seconds of processor
time, which the first visitor of the API page waited for.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
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
    return resources.files(__package__).joinpath("openapi.json").read_bytes()


endpoint = Endpoints("about")


@endpoint("GET /openapi.json")
async def get_open_api(ask: Ask) -> dict[str, Any] | Response:
    """Download this API description as an OpenAPI document."""
    return Response(document_bytes(), media_type=JSON)


@endpoint("GET /docs", media_types=("text/html",))
async def get_docs(ask: Ask) -> Response:
    """Show this API description as a web page.

    This endpoint needs no token: the page asks the user for a token and sends it when it loads the
    description.
    """
    return pages.show(ask.request, PAGE)


ENDPOINTS = (*REST, *endpoint)
"""All endpoints of a server, without the socket."""
