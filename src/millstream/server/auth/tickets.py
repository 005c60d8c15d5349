"""Tickets: short-lived, scoped rights for browsers, which cannot send a token with every request.

A ticket is made from a token and allows a part of what the token allows, for up to an hour. The
store does not know it: it says everything itself, and is signed with a key of the store's. When it
is used it is compared with its token: what the token may not do any more, the ticket may not.

    mt_ + base64url( [token id, token name, expiry, [permission, ...]] as MessagePack )
        + . + base64url( HMAC-SHA256 of what stands before the dot )
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
from msgspec import Struct

from millstream.errors import Denied, InvalidInput, TooLarge, Unauthenticated
from millstream.server.auth.access import PERMISSIONS_MAX, Principal, parse_permissions
from millstream.server.auth.tokens import TEXT_CHARS_MAX, Tokens

PREFIX = "mt_"
SECONDS_MAX = 3_600


class _Claims(Struct, frozen=True, array_like=True):
    token: str
    name: str
    expires_ms: int
    permissions: list[str]


class TicketWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /tickets`."""

    permissions: list[str]
    seconds: float = 60


class BrowserTicket(Struct, frozen=True):
    """The answer: the ticket, what it allows, and until when, in milliseconds since the epoch."""

    ticket: str
    permissions: list[str]
    expires: int


def sign(key: bytes, principal: Principal) -> str:
    """The text of a ticket for a principal that expires."""
    assert principal.expires_ms is not None
    permissions = [str(one) for one in principal.permissions]
    claims = _Claims(principal.token, principal.name, principal.expires_ms, permissions)
    content = PREFIX + _text(msgspec.msgpack.encode(claims))
    return f"{content}.{_text(_signature(key, content))}"


def verify(key: bytes, text: str, *, wall_ms: int) -> Principal:
    """Who comes with a ticket. Raises `Unauthenticated`."""
    content, _, signature = text.rpartition(".")
    if not hmac.compare_digest(_text(_signature(key, content)).encode(), _bytes(signature)):
        raise Unauthenticated
    data = content.removeprefix(PREFIX)
    claims = msgspec.msgpack.decode(urlsafe_b64decode(data + "=" * (-len(data) % 4)), type=_Claims)
    if claims.expires_ms <= wall_ms:
        raise Unauthenticated
    permissions = parse_permissions(claims.permissions)
    return Principal(
        claims.name, permissions, claims.token, expires_ms=claims.expires_ms, is_ticket=True
    )


async def make_ticket(
    tokens: Tokens, principal: Principal, asked: TicketWanted, *, wall_ms: int
) -> BrowserTicket:
    """A ticket for a part of what a token may do."""
    if principal.is_ticket:
        raise Denied("a ticket cannot make tickets: ask with the token", action="ticket")
    if not 0 < asked.seconds <= SECONDS_MAX:
        raise InvalidInput(
            f"a ticket is good for up to {SECONDS_MAX:,} seconds, not {asked.seconds}"
        )
    if len(asked.permissions) > PERMISSIONS_MAX:
        raise TooLarge(
            f"a ticket names up to {PERMISSIONS_MAX} permissions, got {len(asked.permissions):,}",
            size=len(asked.permissions),
            limit=PERMISSIONS_MAX,
        )
    wanted = parse_permissions(asked.permissions)
    if not principal.grants(wanted):
        raise Denied(f"a ticket allows no more than {principal.name} itself may do")
    expires_ms = wall_ms + int(asked.seconds * 1000)
    if principal.expires_ms is not None:
        expires_ms = min(expires_ms, principal.expires_ms)
    scoped = Principal(principal.name, wanted, principal.token, expires_ms, is_ticket=True)
    text = sign(await tokens.make_ticket_key(), scoped)
    if len(text) > TEXT_CHARS_MAX:
        raise TooLarge(
            f"the ticket would have {len(text):,} characters: name fewer permissions",
            size=len(text),
            limit=TEXT_CHARS_MAX,
        )
    return BrowserTicket(text, [str(one) for one in wanted], expires_ms)


def _signature(key: bytes, content: str) -> bytes:
    return hmac.digest(key, _bytes(content), "sha256")


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
