"""Tokens and tickets over REST: the caller's access; create, list and revoke tokens.

Access to the register amounts to all rights. Therefore these endpoints need the permission
`store:admin`, named literally, and a token: a ticket lasts an hour and must not create anything
that lasts longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from millstream.embedded.session import EmbeddedSession
from millstream.errors import Denied
from millstream.record import moment, optional_ms
from millstream.server.auth import tickets
from millstream.server.auth.need import Need
from millstream.server.auth.register import Registrar, Token
from millstream.server.auth.tickets import BrowserTicket, TicketWanted
from millstream.server.auth.tokens import create_token
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.forks import Name
from millstream.server.rest.logs import Page, checked_after
from millstream.threads.database import Millstream

T = TypeVar("T")

_NEEDED = Need("store", "admin", "", is_explicit=True)


class Access(Struct, kw_only=True):
    """The name and permissions of the caller."""

    name: str
    """The name of the token."""
    permissions: list[str]
    expires: datetime | None
    """When the token or ticket ends, in UTC; null: never."""
    tokens: bool
    """Whether this server requires tokens."""
    may_manage_tokens: bool
    """Whether the caller may list, create and revoke tokens."""
    cluster: bool
    """Whether this server is a node of a cluster, or part of a pair with a standby."""


class TokenShown(Struct, kw_only=True):
    """A token without its secret."""

    name: str
    id: str
    """The id in the token's text, before the secret."""
    permissions: list[str]
    created: datetime
    """The time of creation, in UTC."""
    expires: datetime | None
    """When the token ends, in UTC; null: never."""
    expired: bool
    """Whether the token has expired."""


class TokenPage(Struct, kw_only=True):
    """Tokens in the order of their names."""

    tokens: list[TokenShown]
    """All tokens; expired tokens are listed until they are revoked."""
    after: str | None
    """Pass this as `after` for the next page; null: this is the last page."""


class TokenBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The token to create."""

    name: Name
    permissions: list[str]
    expires: Annotated[float, Meta(gt=0, le=1e12)] | None = None
    """Seconds from now; null: the token never expires."""


class TokenMade(TokenShown, kw_only=True):
    """A token that was created."""

    token: str
    """The token's text, which is shown only now."""


class TokenRevoked(Struct, kw_only=True):
    """A token that was revoked."""

    name: str
    id: str
    """The id in the token's text, before the secret."""


endpoint = Endpoints("access")


@endpoint("GET /access")
async def get_access(ask: Ask) -> Access:
    """Show the caller's name and permissions."""
    principal, expires_ms = ask.principal, ask.principal.expires_ms
    return Access(
        name=principal.name,
        permissions=[str(permission) for permission in principal.permissions],
        expires=None if expires_ms is None else moment(expires_ms),
        tokens=ask.core.settings.needs_tokens(),
        may_manage_tokens=principal.allows(_NEEDED) and not principal.is_ticket,
        cluster=ask.core.seat is not None,
    )


@endpoint("POST /tickets", status=201)
async def make_ticket(ask: Ask, body: TicketWanted) -> BrowserTicket:
    """Create a ticket: some rights of a token, for up to an hour.

    A browser sends the ticket as `?ticket=` when it opens a socket or sends a `GET`.
    """
    wall_ms = ask.core.store.clock.wall_ms()
    return await tickets.make_ticket(ask.core.tokens, ask.principal, body, wall_ms=wall_ms)


@endpoint("GET /tokens")
async def list_tokens(ask: Ask, query: Page) -> TokenPage:
    """List tokens in the order of their names, without their secrets."""
    after = checked_after(query.after)
    tokens = await _register(ask, lambda ms: Registrar(ms).tokens())
    page = [token for token in tokens if token.name > after][: query.limit]
    following = page[-1].name if len(page) == query.limit else None
    return TokenPage(tokens=[_shown(ask, token) for token in page], after=following)


@endpoint("POST /tokens", status=201, description="The token was created", errors=(409,))
async def make_token(ask: Ask, body: TokenBody) -> TokenMade:
    """Create a token. Its text is shown only in this answer; the token is valid at once."""
    expires_ms, clock = optional_ms(body.expires, "expires"), ask.clock
    made, text = await _register(
        ask,
        lambda ms: create_token(
            ms, body.name, body.permissions, expires_ms=expires_ms, clock=clock
        ),
    )
    await ask.core.tokens.refresh()
    shown = _shown(ask, made)
    return TokenMade(
        token=text, **{name: getattr(shown, name) for name in TokenShown.__struct_fields__}
    )


@endpoint("DELETE /tokens/{token}", errors=(404,))
async def revoke_token(ask: Ask, token: str) -> TokenRevoked:
    """Revoke a token by name or id: this server refuses it at once, other servers within a
    second."""
    revoked = await _register(ask, lambda ms: Registrar(ms).revoke(token))
    await ask.core.tokens.refresh()
    return TokenRevoked(name=revoked.name, id=revoked.id)


async def _register(ask: Ask, use: Callable[[Millstream], T]) -> T:
    """Use the register of tokens on a thread, if the caller may."""
    if ask.principal.is_ticket:
        raise Denied("a ticket can neither list nor create tokens: use a token", action="token")
    ask.principal.require(_NEEDED)
    return await asyncio.to_thread(use, Millstream(EmbeddedSession(ask.core.store)))


def _shown(ask: Ask, token: Token) -> TokenShown:
    return TokenShown(
        name=token.name,
        id=token.id,
        permissions=token.permissions,
        created=moment(token.created),
        expires=None if token.expires is None else moment(token.expires),
        expired=token.has_expired(ask.clock.wall_ms()),
    )
