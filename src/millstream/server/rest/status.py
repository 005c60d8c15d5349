"""The status of the server and its store over REST: statistics, health and metrics."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from millstream import __version__
from millstream.cluster.read_level import HOP_HEADER
from millstream.command import Stats
from millstream.format.version import FORMAT
from millstream.server.auth.need import Need
from millstream.server.observe import metrics
from millstream.server.observe.health import Health
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import JSON, Endpoints
from millstream.wire import commands as wire

_OF_THIS_MACHINE = ("path",)
"""Statistics that are not sent over a network."""

endpoint = Endpoints("store")


@endpoint("GET /stats")
async def get_stats(ask: Ask) -> dict[str, Any]:
    """Show facts and counters of the store."""
    facts = await ask.execute(Stats())
    return {name: fact for name, fact in facts.items() if name not in _OF_THIS_MACHINE}


class ServerVersion(Struct, frozen=True):
    """The versions of a server, of its protocol, and of the files that it writes."""

    version: str
    """The version of Millstream."""
    protocol: int
    """The version of the streaming socket's protocol."""
    abilities: list[str]
    """What the server can do beyond the first version of the protocol."""
    format: int
    """The format of the stores that the server writes."""


@endpoint("GET /version")
async def get_version(ask: Ask) -> ServerVersion:
    """Show the version of the server, and the abilities of its streaming socket."""
    return ServerVersion(__version__, wire.VERSION, list(wire.ABILITIES), FORMAT)


@endpoint("GET /health", also={503: "Critical"})
async def get_health(ask: Ask) -> Health | Response:
    """Show whether the server works: healthy, warning or critical.

    This endpoint needs no token. A token that may read the store also gets the list of checks.
    """
    health = await ask.core.checkup.health()
    if not ask.principal.allows(Need("store", "read", "")):
        health = Health(health.status)
    status = 503 if health.status == "critical" else 200
    return Response(
        msgspec.json.encode(health), status, headers={"cache-control": "no-store"}, media_type=JSON
    )


@endpoint("GET /metrics", media_types=("text/plain", "application/openmetrics-text"))
async def get_metrics(ask: Ask) -> Response:
    """Show the metrics of the server, its store and its queues, for Prometheus."""
    ask.principal.require(Need("store", "read", ""))
    siblings, request = ask.core.siblings, ask.request
    if siblings is not None and HOP_HEADER in request.headers:
        return Response(await metrics.share_of_process(ask.core), media_type="text/plain")
    shares = [] if siblings is None else await siblings.ask_all(request)
    accept = request.headers.get("accept", "")
    text, kind = await metrics.exposition(ask.core, accept, shares)
    return Response(text, headers={"content-type": kind})
