"""Tickets over REST: short-lived rights that a web server gets here for its browsers."""

from __future__ import annotations

from millstream.server.auth import tickets
from millstream.server.auth.tickets import BrowserTicket, TicketWanted
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints

endpoint = Endpoints("access")


@endpoint("POST /tickets", status=201)
async def make_ticket(ask: Ask, body: TicketWanted) -> BrowserTicket:
    """Create a ticket: some rights of a token, for up to an hour.

    A browser sends the ticket as `?ticket=` when it opens a socket or sends a `GET`.
    """
    wall_ms = ask.core.store.clock.wall_ms()
    return await tickets.make_ticket(ask.core.tokens, ask.principal, body, wall_ms=wall_ms)
