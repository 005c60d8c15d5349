"""Tickets over REST: what a browser asks its own server for, and then brings here."""

from __future__ import annotations

from millstream.server.auth import tickets
from millstream.server.auth.tickets import BrowserTicket, TicketWanted
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints

endpoint = Endpoints("access")


@endpoint("POST /tickets", status=201)
async def make_ticket(ask: Ask, body: TicketWanted) -> BrowserTicket:
    """Make a ticket: some of a token's rights, for up to an hour.

    For browsers, which send it as `?ticket=` when they open a socket or `GET`.
    """
    wall_ms = ask.core.store.clock.wall_ms()
    return await tickets.make_ticket(ask.core.tokens, ask.principal, body, wall_ms=wall_ms)
