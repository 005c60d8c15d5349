"""Tickets over REST: what a browser asks its own server for, and then brings here."""

from __future__ import annotations

from millstream.server.auth.tickets import Asked, Ticket, make_ticket
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Answer, Endpoint


async def _make_ticket(ask: Ask) -> Ticket:
    wall_ms = ask.core.store.clock.wall_ms()
    return await make_ticket(ask.core.tokens, ask.principal, ask.body, wall_ms=wall_ms)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/tickets",
        name="makeTicket",
        summary="Make a ticket: some of a token's rights, for up to an hour",
        detail="For browsers, which send it as `?ticket=` when they open a socket or `GET`.",
        run=_make_ticket,
        tag="access",
        body=Asked,
        answers=(Answer(Ticket, status=201),),
    ),
)
