"""Tickets: short-lived, scoped rights for browsers, which cannot send a token with every request.

A ticket is made from a token and has some of the token's rights, for up to an hour. The store keeps
no list of tickets: a ticket contains its rights, signed with a key of the store. Every use compares
the ticket with its token: a right that the token has lost is lost for the ticket too. A ticket with a
user sends to rooms as this user only. `format/ticket.py` defines the text of a ticket.
"""

from __future__ import annotations

from msgspec import Struct

from millstream.errors import Denied, InvalidInput, TooLarge
from millstream.format import ticket as text_of
from millstream.format.ticket import SECONDS_MAX, TicketClaims
from millstream.rooms.commands import MintBrowserTicket, MintTicket
from millstream.rooms.model import NounTicket, RoomTicket
from millstream.rooms.packed_messages import check_sender
from millstream.rooms.tickets import (
    check_browser_ticket,
    check_wanted,
    permission_of,
    ticket_of,
)
from millstream.server.auth.access import Principal
from millstream.server.auth.permission import PERMISSIONS_MAX, parse_permissions
from millstream.server.auth.tokens import TEXT_CHARS_MAX, Tokens

PREFIX = text_of.PREFIX


class TicketWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /tickets`."""

    permissions: list[str]
    seconds: float = 60
    user: str = ""
    """The user of the ticket: the sender of every message to a room."""


class BrowserTicket(Struct, frozen=True):
    """The answer: the ticket, its permissions, and its expiry in milliseconds since the epoch."""

    ticket: str
    permissions: list[str]
    expires: int


def sign(key: bytes, principal: Principal) -> str:
    """Return the text of a ticket for a principal that expires."""
    assert principal.expires_ms is not None
    permissions = [str(permission) for permission in principal.permissions]
    claims = TicketClaims(
        principal.token, principal.name, principal.expires_ms, permissions, principal.user
    )
    return text_of.sign(key, claims)


def verify(key: bytes, text: str, *, wall_ms: int) -> Principal:
    """Return the principal of a ticket. Raises `Unauthenticated`."""
    claims = text_of.verify(key, text, wall_ms=wall_ms)
    return Principal(
        claims.name,
        parse_permissions(claims.permissions),
        claims.token,
        expires_ms=claims.expires_ms,
        is_ticket=True,
        user=claims.user,
    )


async def mint_ticket(
    tokens: Tokens, principal: Principal, request: MintTicket, *, wall_ms: int
) -> RoomTicket:
    """Return a ticket for a room and a user, made with a token that has the right to the room."""
    check_wanted(request)
    ticket_request = TicketWanted([permission_of(request)], request.seconds, request.user)
    made = await make_ticket(tokens, principal, ticket_request, wall_ms=wall_ms)
    return ticket_of(made.ticket, request, made.expires)


async def mint_browser_ticket(
    tokens: Tokens, principal: Principal, request: MintBrowserTicket, *, wall_ms: int
) -> NounTicket:
    """Return a ticket for a log or a queue, made with a token that has the same right."""
    permission = check_browser_ticket(request)
    ticket_request = TicketWanted([permission], request.seconds)
    made = await make_ticket(tokens, principal, ticket_request, wall_ms=wall_ms)
    return NounTicket(ticket=made.ticket, permission=permission, expires=made.expires)


async def make_ticket(
    tokens: Tokens, principal: Principal, request: TicketWanted, *, wall_ms: int
) -> BrowserTicket:
    """Return a ticket for some rights of a token."""
    if principal.is_ticket:
        raise Denied("a ticket cannot make tickets: ask with the token", action="ticket")
    if request.user:
        check_sender(request.user)
    if not 0 < request.seconds <= SECONDS_MAX:
        raise InvalidInput(
            f"a ticket is good for up to {SECONDS_MAX:,} seconds, not {request.seconds}"
        )
    if len(request.permissions) > PERMISSIONS_MAX:
        raise TooLarge(
            f"a ticket names up to {PERMISSIONS_MAX} permissions, got {len(request.permissions):,}",
            size=len(request.permissions),
            limit=PERMISSIONS_MAX,
        )
    permissions = parse_permissions(request.permissions)
    if not principal.grants(permissions):
        raise Denied(f"a ticket allows no more than {principal.name} itself may do")
    expires_ms = wall_ms + int(request.seconds * 1000)
    if principal.expires_ms is not None:
        expires_ms = min(expires_ms, principal.expires_ms)
    scoped = Principal(
        principal.name, permissions, principal.token, expires_ms, is_ticket=True, user=request.user
    )
    text = sign(await tokens.make_ticket_key(), scoped)
    if len(text) > TEXT_CHARS_MAX:
        raise TooLarge(
            f"the ticket would have {len(text):,} characters: name fewer permissions",
            size=len(text),
            limit=TEXT_CHARS_MAX,
        )
    return BrowserTicket(text, [str(permission) for permission in permissions], expires_ms)
