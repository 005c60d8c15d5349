"""Tickets as text: short-lived, scoped and signed rights that need no lookup.

mt_ + base64url( [token id, token name, expiry, [permission, ...], user] as MessagePack )
    + . + base64url( HMAC-SHA256 of what stands before the dot )
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
from msgspec import Struct

from millstream.errors import Unauthenticated

PREFIX = "mt_"
SECONDS_MAX = 3_600
"""The maximum lifetime of a ticket."""

KEY_BYTES = 32

BY_STORE = "store"
"""In place of a token's id: a program with the store open has made the ticket."""


class TicketClaims(Struct, frozen=True, array_like=True):
    """The content of a ticket."""

    token: str
    """The id of the token that made the ticket; empty without a token."""
    name: str
    expires_ms: int
    permissions: list[str]
    user: str = ""
    """The user of the ticket, and so the sender of messages to rooms; empty without a user."""


def sign(key: bytes, claims: TicketClaims) -> str:
    """Return the text of a signed ticket."""
    content = PREFIX + _text(msgspec.msgpack.encode(claims))
    return f"{content}.{_text(_signature(key, content))}"


def verify(key: bytes, text: str, *, wall_ms: int) -> TicketClaims:
    """Check a ticket and return its content. Raises `Unauthenticated` if forged or expired."""
    content, _, signature = text.rpartition(".")
    if not hmac.compare_digest(_text(_signature(key, content)).encode(), _bytes(signature)):
        raise Unauthenticated
    data = content.removeprefix(PREFIX)
    padded = urlsafe_b64decode(data + "=" * (-len(data) % 4))
    claims = msgspec.msgpack.decode(padded, type=TicketClaims)
    if claims.expires_ms <= wall_ms:
        raise Unauthenticated
    return claims


def _signature(key: bytes, content: str) -> bytes:
    return hmac.digest(key, _bytes(content), "sha256")


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
