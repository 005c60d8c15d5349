"""Tokens: who may come in, kept in the store itself.

The text of a token is `ms_` + id + `_` + secret, and is shown once. The store holds a digest of the
secret, in the metadata of a log of its own, one entry per token under its name. The secret has 256
random bits, so that a plain digest of it tells nothing.

Any process with the file may create and revoke. A server reads the entries again when they are half
a second old, and waits for that when they are a whole one.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from millstream.clock import Clock, SystemClock
from millstream.command import AsyncSession, Session
from millstream.database import Millstream
from millstream.errors import (
    AlreadyExists,
    InvalidInput,
    MetadataConflict,
    NotFound,
    TooLarge,
    Unauthenticated,
)
from millstream.log.commands import GetMetadata, SetMetadata
from millstream.log.names import check_name
from millstream.server.access import (
    RESERVED,
    Permission,
    Principal,
    parse_permissions,
)

LOG = f"{RESERVED}tokens"
PREFIX = "ms_"
SECRET_BYTES = 32
ID_BYTES = 8
TEXT_CHARS_MAX = 4_096
"""No token or ticket is longer; what is, is not looked at."""

EXPIRES_MS_MAX = 100 * 366 * 24 * 3600 * 1000
"""A token that is to last longer has no end."""

STALE_S = 0.5
"""After so long the entries are read again, beside whoever asks."""

WAIT_S = 1.0
"""After so long whoever asks waits for that: so soon a revoked token is refused."""

_ENTRY = "token:"
_KEY = "ticket-key"
_NO_DIGEST = "0" * 64


class Token(Struct, frozen=True, kw_only=True):
    """What is known of a token; nothing in it lets anybody in."""

    id: str
    name: str
    permissions: tuple[Permission, ...]
    created: int
    expires: int | None = None
    """Milliseconds since the epoch."""

    def has_expired(self, wall_ms: int) -> bool:
        """Whether its time is over."""
        return self.expires is not None and self.expires <= wall_ms


class _Entry(Struct, frozen=True, omit_defaults=True):
    """A token as the store holds it."""

    id: str
    digest: str
    permissions: list[str]
    created: int
    expires: int | None = None


def create_token(
    ms: Millstream,
    name: str,
    permissions: Iterable[str],
    *,
    expires_ms: int | None = None,
    clock: Clock | None = None,
) -> tuple[Token, str]:
    """Make a token; answers it and its text, which nobody can be told again.

    `expires_ms` is how long it is good for, from now.
    """
    check_name(name, "token")
    allowed = parse_permissions(permissions)
    if expires_ms is not None and not 0 < expires_ms <= EXPIRES_MS_MAX:
        raise InvalidInput("a token is good for a positive time of up to 100 years, or without end")
    now_ms = (clock or SystemClock()).wall_ms()
    identity, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
    expires = None if expires_ms is None else now_ms + expires_ms
    entry = _Entry(identity, digest_of(secret), [str(one) for one in allowed], now_ms, expires)
    try:
        ms.log(LOG).metadata.compare_and_set(
            _ENTRY + name, expect=None, value=msgspec.to_builtins(entry)
        )
    except MetadataConflict:
        raise AlreadyExists(
            f"there is a token {name!r} already; revoke it first, or take another name", name=name
        ) from None
    except TooLarge as error:
        raise TooLarge(
            f"there is no room for another token: revoke some first ({error.message})", **error.data
        ) from None
    return _to_token(name, entry), f"{PREFIX}{identity}_{secret}"


def list_tokens(store: Millstream | Session) -> list[Token]:
    """Every token, by name; expired ones too, until they are revoked."""
    if isinstance(store, Millstream):
        entries = dict(store.log(LOG).metadata)
    else:
        entries = store.execute(GetMetadata(LOG))
    return sorted((token for token, _ in _tokens(entries)), key=lambda token: token.name)


def revoke_token(ms: Millstream, name: str) -> Token:
    """Let a token, known by its name or id, in no more."""
    tokens = list_tokens(ms)
    for token in (one for by in ("name", "id") for one in tokens if getattr(one, by) == name):
        ms.log(LOG).metadata.pop(_ENTRY + token.name, None)
        return token
    raise NotFound(f"there is no token {name!r}; `millstream token list` shows them", name=name)


def digest_of(secret: str) -> str:
    """What is kept of a secret."""
    return blake2b(secret.encode("utf-8", "backslashreplace"), digest_size=32).hexdigest()


class Tokens:
    """The tokens of a store as a server knows them; belongs to one event loop."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._clock: Clock = session.clock
        self._by_id: dict[str, tuple[Token, str]] = {}
        self._key: bytes | None = None
        self._read_s: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def authenticate(self, text: str) -> Principal:
        """Who comes with a token. Raises `Unauthenticated`."""
        await self.freshen()
        _, _, rest = text.partition("_")
        identity, _, secret = rest.partition("_")
        token, digest = self._by_id.get(identity, (None, _NO_DIGEST))
        is_right = hmac.compare_digest(digest_of(secret), digest)
        if token is None or not is_right or token.has_expired(self._clock.wall_ms()):
            raise Unauthenticated
        return Principal(token.name, token.permissions, token.id, token.expires)

    async def confirm(self, principal: Principal) -> None:
        """Refuse somebody who came in earlier, and may not be here any more. Raises `Unauthenticated`."""
        if principal.expires_ms is not None and principal.expires_ms <= self._clock.wall_ms():
            raise Unauthenticated
        if principal.token:
            await self.freshen()
            if principal.token not in self._by_id:
                raise Unauthenticated

    async def ticket_key(self) -> bytes:
        """The key that tickets are signed with. Raises `Unauthenticated` if none ever was."""
        await self.freshen()
        if self._key is None:
            raise Unauthenticated
        return self._key

    async def make_ticket_key(self) -> bytes:
        """The key to sign tickets with; the first server of a store makes it."""
        await self.freshen()
        while self._key is None:
            made = secrets.token_hex(SECRET_BYTES)
            try:
                await self._session.execute(SetMetadata(LOG, _KEY, made, expect=None, compare=True))
            except MetadataConflict:
                pass  # somebody else was quicker: theirs is read
            await self._read()
        return self._key

    async def freshen(self) -> None:
        """See what was created and revoked, by whomever, up to a second ago."""
        age_s = WAIT_S if self._read_s is None else self._clock.seconds() - self._read_s
        if age_s < STALE_S:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(_looked_at)
        if age_s >= WAIT_S:
            await asyncio.shield(self._reading)

    async def close(self) -> None:
        """Wait for what is being read."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        began_s = self._clock.seconds()
        found = await self._session.execute(GetMetadata(LOG))
        self._by_id = {token.id: (token, digest) for token, digest in _tokens(found)}
        self._key = bytes.fromhex(found[_KEY]) if _KEY in found else None
        self._read_s = began_s


def _looked_at(reading: asyncio.Task[None]) -> None:
    """A read that fails while nobody waits for it is repeated by the next who does."""
    if not reading.cancelled():
        reading.exception()


def _tokens(entries: dict[str, Any]) -> list[tuple[Token, str]]:
    found = []
    for key, value in entries.items():
        if key.startswith(_ENTRY):
            entry = msgspec.convert(value, _Entry)
            found.append((_to_token(key.removeprefix(_ENTRY), entry), entry.digest))
    return found


def _to_token(name: str, entry: _Entry) -> Token:
    return Token(
        id=entry.id,
        name=name,
        permissions=parse_permissions(entry.permissions),
        created=entry.created,
        expires=entry.expires,
    )
