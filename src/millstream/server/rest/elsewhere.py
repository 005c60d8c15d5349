"""Addresses that are answered beside REST, as the document tells them: their routes have their own."""

from __future__ import annotations

from typing import Any

from millstream.server.auth.tickets import Asked, Ticket
from millstream.server.observe.health import Health
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Answer, Endpoint


async def _answered_elsewhere(ask: Ask) -> Any:
    """Only the document uses these endpoints."""
    raise AssertionError("not a route of REST")


ELSEWHERE = (
    Endpoint(
        method="POST",
        path="/tickets",
        name="makeTicket",
        summary="Make a ticket: some of a token's rights, for up to an hour",
        detail="For browsers, which send it as `?ticket=` when they open a socket or `GET`.",
        run=_answered_elsewhere,
        tag="access",
        body=Asked,
        answers=(Answer(Ticket, status=201),),
    ),
    Endpoint(
        method="GET",
        path="/health",
        name="getHealth",
        summary="Whether the server can do its work: healthy, warning or critical",
        detail="Needs no token; the checks are shown to whoever may read the store.",
        run=_answered_elsewhere,
        tag="store",
        answers=(Answer(Health), Answer(Health, "Critical", status=503)),
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        name="getMetrics",
        summary="How the server, its store and its queues stand, for Prometheus",
        run=_answered_elsewhere,
        tag="store",
        answers=(Answer(None, media_types=("text/plain", "application/openmetrics-text")),),
    ),
)
