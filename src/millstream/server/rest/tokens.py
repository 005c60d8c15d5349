"""Tokens over REST: who asks, and which tokens there are; made and revoked as the command line does.

A holder of the register has every right, so these need the permission `store:admin`, named
literally, and a token: a ticket, which lasts for an hour, makes nothing that lasts longer.
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
from millstream.server.auth.need import Need
from millstream.server.auth.register import Registrar, Token
from millstream.server.auth.tokens import create_token
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.forks import Name
from millstream.server.rest.logs import Page, checked_after
from millstream.threads.database import Millstream

T = TypeVar("T")

_NEEDED = Need("store", "admin", "", is_explicit=True)


class Access(Struct, kw_only=True):
    """Who asks, and what it may do."""

    name: str
    """The name of the token."""
    permissions: list[str]
    expires: datetime | None
    """When the token or ticket ends, in UTC; null: it does not."""
    tokens: bool
    """Whether this server lets in tokens only."""
    may_manage_tokens: bool
    """Whether it may list, create and revoke tokens."""


class TokenShown(Struct, kw_only=True):
    """A token; its text is not kept."""

    name: str
    id: str
    """It stands in the token's text, before the secret."""
    permissions: list[str]
    created: datetime
    """When it was made, in UTC."""
    expires: datetime | None
    """When it ends, in UTC; null: it does not."""
    expired: bool
    """Whether its time is over."""


class TokenPage(Struct, kw_only=True):
    """Tokens in the order of their names."""

    tokens: list[TokenShown]
    """Expired ones too, until they are revoked."""
    after: str | None
    """Ask with this for the next page; null: there is none."""


class TokenBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A token that is wanted."""

    name: Name
    permissions: list[str]
    expires: Annotated[float, Meta(gt=0, le=1e12)] | None = None
    """Seconds from now; null: without end."""


class TokenMade(TokenShown, kw_only=True):
    """A token that was made."""

    token: str
    """Its text, which is told only this once."""


class TokenRevoked(Struct, kw_only=True):
    """A token that counts no more."""

    name: str
    id: str
    """It stood in the token's text, before the secret."""


endpoint = Endpoints("access")


@endpoint("GET /access")
async def get_access(ask: Ask) -> Access:
    """Who asks, and what it may do."""
    found, expires_ms = ask.principal, ask.principal.expires_ms
    return Access(
        name=found.name,
        permissions=[str(one) for one in found.permissions],
        expires=None if expires_ms is None else moment(expires_ms),
        tokens=ask.core.settings.needs_tokens(),
        may_manage_tokens=found.allows(_NEEDED) and not found.is_ticket,
    )


@endpoint("GET /tokens")
async def list_tokens(ask: Ask, query: Page) -> TokenPage:
    """List the tokens in the order of their names; never their secrets."""
    after = checked_after(query.after)
    found = await _register(ask, lambda ms: Registrar(ms).tokens())
    page = [one for one in found if one.name > after][: query.limit]
    following = page[-1].name if len(page) == query.limit else None
    return TokenPage(tokens=[_shown(ask, one) for one in page], after=following)


@endpoint("POST /tokens", status=201, description="It was made", errors=(409,))
async def make_token(ask: Ask, body: TokenBody) -> TokenMade:
    """Make a token; its text is told only this once, and counts at once."""
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
    """Revoke a token, by its name or id; it is refused at once, by other servers within a second."""
    gone = await _register(ask, lambda ms: Registrar(ms).revoke(token))
    await ask.core.tokens.refresh()
    return TokenRevoked(name=gone.name, id=gone.id)


async def _register(ask: Ask, use: Callable[[Millstream], T]) -> T:
    """Read or write the register on a thread, for a principal that may."""
    if ask.principal.is_ticket:
        raise Denied("a ticket neither sees nor makes tokens: ask with a token", action="token")
    ask.principal.require(_NEEDED)
    return await asyncio.to_thread(use, Millstream(EmbeddedSession(ask.core.store)))


def _shown(ask: Ask, one: Token) -> TokenShown:
    return TokenShown(
        name=one.name,
        id=one.id,
        permissions=one.permissions,
        created=moment(one.created),
        expires=None if one.expires is None else moment(one.expires),
        expired=one.has_expired(ask.clock.wall_ms()),
    )
