"""Clients that come with a ticket or a token, as the guard finds out who they are."""

from __future__ import annotations

from millstream.server.auth.access import Principal
from millstream.server.auth.tickets import verify
from tests.unit.server.guarded import Guarded


async def entered(at: Guarded, ticket: str) -> Principal:
    """Who comes with a ticket, as the guard finds out."""
    wall_ms = at.core.store.clock.wall_ms()
    return await at.core.tokens.confirm(
        verify(await at.core.tokens.ticket_key(), ticket, wall_ms=wall_ms)
    )


async def token_of(at: Guarded, *permissions: str) -> Principal:
    return await at.core.tokens.authenticate(at.token(*permissions, name="shop"))
