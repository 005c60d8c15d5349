"""The store as a whole: its facts and counters, whether it is well, and what is measured of it."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from millstream.command import Stats
from millstream.server.auth.need import Need
from millstream.server.observe import metrics
from millstream.server.observe.health import Health
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import JSON, Endpoints

_OF_THIS_MACHINE = ("path",)
"""Facts that are not shown across a network."""

endpoint = Endpoints("store")


@endpoint("GET /stats")
async def get_stats(ask: Ask) -> dict[str, Any]:
    """Facts and counters of the store."""
    found = await ask.execute(Stats())
    return {name: fact for name, fact in found.items() if name not in _OF_THIS_MACHINE}


@endpoint("GET /health", also={503: "Critical"})
async def get_health(ask: Ask) -> Health | Response:
    """Whether the server can do its work: healthy, warning or critical.

    Needs no token; the checks are shown to tokens that may read the store.
    """
    found = await ask.core.checkup.health()
    if not ask.principal.allows(Need("store", "read", "")):
        found = Health(found.status)
    status = 503 if found.status == "critical" else 200
    return Response(
        msgspec.json.encode(found), status, headers={"cache-control": "no-store"}, media_type=JSON
    )


@endpoint("GET /metrics", media_types=("text/plain", "application/openmetrics-text"))
async def get_metrics(ask: Ask) -> Response:
    """How the server, its store and its queues stand, for Prometheus."""
    ask.principal.require(Need("store", "read", ""))
    text, kind = await metrics.exposition(ask.core, ask.request.headers.get("accept", ""))
    return Response(text, headers={"content-type": kind})
