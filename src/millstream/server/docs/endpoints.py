"""Where the document and its page are found, and everything that they describe.

The document is made by a process of its own, once, when it is first asked for: msgspec, having made
schemas of many types, sometimes crashes the interpreter's last collection, and that process leaves
without one.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import subprocess
import sys
from functools import cache
from importlib import resources
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.server.core import Core
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
def page() -> tuple[str, dict[str, str]]:
    """The page that shows the document, and the headers that keep it to itself.

    It is the same for every client, and asks for the document, and for the token that it takes. The
    policy lets in its own style and script, by their hashes, and lets it ask this server alone.
    """
    folder = resources.files(__package__)
    html, style, script = (
        folder.joinpath(f"docs.{kind}").read_text(encoding="utf-8")
        for kind in ("html", "css", "js")
    )
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.replace("/* docs.css */", style).replace("/* docs.js */", script), {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


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
    html, headers = page()
    return Response(html, media_type="text/html", headers=headers)


ENDPOINTS = (*REST, *endpoint)
"""Everything that a server answers, but for the socket."""
