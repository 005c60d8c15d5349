"""Tokens: the credentials of clients, and their check.

The text of a token is `ms_` + id + `_` + secret, and is shown once. The store's register holds a
digest of the secret. The secret has 256 random bits, so that a plain digest reveals nothing.

Any process with the file may create and revoke tokens. A server reads new entries of the register
every half second, while requests go on. Requests wait for the read if the last one is a second old.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from msgspec.structs import replace

from millstream.clock import Clock, SystemClock
from millstream.command import AsyncSession
from millstream.errors import InvalidInput, MetadataConflict, Truncated, Unauthenticated
from millstream.format.ticket import BY_STORE, KEY_BYTES
from millstream.log.commands import DescribeLog, GetMetadata, ReadBlocks, SetMetadata
from millstream.log.model.names import check_name
from millstream.rooms.tickets import TICKET_KEY
from millstream.server.auth.access import Principal, common
from millstream.server.auth.permission import parse_permissions
from millstream.server.auth.register import LOG, Register, Registrar, Token
from millstream.server.auth.signing_key import opened, sealed, signing_key
from millstream.store.store import Store
from millstream.threads.database import Millstream

PREFIX = "ms_"
SECRET_BYTES = 32
ID_BYTES = 8
TEXT_CHARS_MAX = 4_096
"""The longest token or ticket; a longer text is refused unread."""

EXPIRES_MS_MAX = 100 * 366 * 24 * 3600 * 1000
"""The longest lifetime; a token for longer has no expiry."""

STALE_S = 0.5
"""After so long the server reads the register again, while requests go on."""

WAIT_S = 1.0
"""After so long requests wait for the read, so that revoked tokens are refused in time."""

_NO_DIGEST = "0" * 64


def create_token(
    ms: Millstream,
    name: str,
    permissions: Iterable[str],
    *,
    expires_ms: int | None = None,
    clock: Clock | None = None,
) -> tuple[Token, str]:
    """Create a token; return its entry and its text, which cannot be shown again.

    The token expires after `expires_ms` from now.
    """
    check_name(name, "token")
    allowed = parse_permissions(permissions)
    if expires_ms is not None and not 0 < expires_ms <= EXPIRES_MS_MAX:
        raise InvalidInput(
            f"a token is good for a positive time of up to 100 years, or without end; "
            f"not for {expires_ms} ms"
        )
    now_ms = (clock or SystemClock()).wall_ms()
    expires = None if expires_ms is None else now_ms + expires_ms
    made, text = new_token(name, [str(each) for each in allowed], created=now_ms, expires=expires)
    key = signing_key(_folder_of(ms), create=True)
    if key is not None:
        made = replace(
            made, sealed=sealed(key, made.id, text.removeprefix(PREFIX).partition("_")[2])
        )
    Registrar(ms).add(made)
    return made, text


def _folder_of(ms: Millstream) -> Path | None:
    """Return the folder of a store in this process; None without one."""
    store = getattr(getattr(ms, "_session", None), "store", None)
    return store.engine.folder() if isinstance(store, Store) else None


def new_token(
    name: str, permissions: list[str], *, created: int, expires: int | None
) -> tuple[Token, str]:
    """Return the entry of a new token with a new secret, and the text of the token."""
    identity, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
    made = Token(
        name=name,
        id=identity,
        digest=digest_of(secret),
        permissions=permissions,
        created=created,
        expires=expires,
    )
    return made, f"{PREFIX}{identity}_{secret}"


def digest_of(secret: str) -> str:
    """Return the digest of a secret, which the store keeps."""
    return blake2b(secret.encode("utf-8", "backslashreplace"), digest_size=32).hexdigest()


class Tokens:
    """A server's view of the tokens of a store; belongs to one event loop."""

    def __init__(self, session: AsyncSession, folder: Path | None = None) -> None:
        """Read the register of a session; the folder of the store has the key of signatures."""
        self._session = session
        self._folder = folder
        self._signing_key: bytes | None = None
        self._clock: Clock = session.clock
        self._register = Register()
        self._key: bytes | None = None
        self._read_s: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def authenticate(self, text: str) -> Principal:
        """Return the principal of a token. Raises `Unauthenticated`."""
        await self.freshen()
        return self._authenticated(text)

    def authenticate_now(self, text: str) -> Principal | None:
        """As `authenticate`, without waiting; None if the register is stale, or the token is wrong."""
        if self._read_s is None or self._clock.seconds() - self._read_s >= STALE_S:
            return None
        try:
            return self._authenticated(text)
        except Unauthenticated:
            return None

    def _authenticated(self, text: str) -> Principal:
        identity, _, secret = text.removeprefix(PREFIX).partition("_")
        token = self._register.by_id.get(identity) if text.startswith(PREFIX) else None
        is_right = hmac.compare_digest(digest_of(secret), token.digest if token else _NO_DIGEST)
        if token is None or not is_right or token.has_expired(self._clock.wall_ms()):
            raise Unauthenticated
        return Principal(token.name, token.allowed, token.id, token.expires)

    def secret_of(self, identity: str) -> str | None:
        """Return the text of a token that verifies signatures; None if no valid token has the id."""
        token = self._register.by_id.get(identity)
        if token is None or not token.sealed or token.has_expired(self._clock.wall_ms()):
            return None
        if self._signing_key is None:
            self._signing_key = signing_key(self._folder)
        if self._signing_key is None:
            return None
        secret = opened(self._signing_key, identity, token.sealed)
        if secret is None or not hmac.compare_digest(digest_of(secret), token.digest):
            return None  # sealed by the key of another folder
        return f"{PREFIX}{identity}_{secret}"

    async def confirm(self, principal: Principal) -> Principal:
        """Return a principal that came in earlier, with the rights that its token has now.

        A ticket has the rights that both the ticket and its token have. Raises `Unauthenticated` if
        the token was revoked, or if the token or the ticket has expired.
        """
        await self.freshen_for(principal)
        return self.confirm_at_once(principal)

    async def freshen_for(self, principal: Principal) -> None:
        """Wait until `confirm_at_once` may be called for a principal."""
        if principal.token and principal.token != BY_STORE:
            await self.freshen()

    def is_fresh(self, principal: Principal) -> bool:
        """Whether the register was read so lately that `confirm_at_once` may be called."""
        if not principal.token or principal.token == BY_STORE:
            return True
        return self._read_s is not None and self._clock.seconds() - self._read_s < STALE_S

    def confirm_at_once(self, principal: Principal) -> Principal:
        """As `confirm`, from the register as it was last read."""
        if not principal.token and principal.expires_ms is None:
            return principal
        wall_ms = self._clock.wall_ms()
        if principal.expires_ms is not None and principal.expires_ms <= wall_ms:
            raise Unauthenticated
        if not principal.token or principal.token == BY_STORE:
            return principal
        token = self._register.by_id.get(principal.token)
        if token is None or token.has_expired(wall_ms):
            raise Unauthenticated
        allowed = token.allowed
        if principal.is_ticket:
            allowed = common(principal.permissions, allowed)
        if allowed == principal.permissions:
            return principal
        return replace(principal, permissions=allowed)

    async def ticket_key(self) -> bytes:
        """Return the key that signs tickets. Raises `Unauthenticated` if there is no key yet."""
        await self.freshen()
        if self._key is None:
            raise Unauthenticated
        return self._key

    async def make_ticket_key(self) -> bytes:
        """Return the key that signs tickets; the first server of a store creates the key."""
        await self.freshen()
        while self._key is None:
            made = secrets.token_hex(KEY_BYTES)
            try:
                await self._session.execute(
                    SetMetadata(LOG, TICKET_KEY, made, expect=None, compare=True)
                )
            except MetadataConflict:
                pass  # another server has created the key
            await self._read()
        return self._key

    async def freshen(self) -> None:
        """Read the register if the last read is too old; see `STALE_S` and `WAIT_S`."""
        age_s = WAIT_S if self._read_s is None else self._clock.seconds() - self._read_s
        if age_s < STALE_S:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(_looked_at)
        if age_s >= WAIT_S:
            await asyncio.shield(self._reading)

    async def refresh(self) -> None:
        """Read all tokens that were created and revoked until now."""
        await self.close()
        self._read_s = None
        await self.freshen()

    async def close(self) -> None:
        """Wait for a read that is under way."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        began_s = self._clock.seconds()
        await self._read_on()
        if self._key is None:
            metadata = await self._session.execute(GetMetadata(LOG))
            self._key = bytes.fromhex(metadata[TICKET_KEY]) if TICKET_KEY in metadata else None
        self._read_s = began_s

    async def _read_on(self) -> None:
        register, bytes_max = self._register, self._session.limits.read_bytes_max
        while unread := register.unread(await self._session.execute(DescribeLog(LOG))):
            command = ReadBlocks(LOG, unread.start, unread.stop, bytes_max)
            try:
                blocks = await self._session.execute(command)
            except Truncated:
                continue  # the register was rewritten meanwhile
            register.take(blocks)


def _looked_at(reading: asyncio.Task[None]) -> None:
    """Ignore the error of a read that no request waits for: the next request reads again."""
    if not reading.cancelled():
        reading.exception()
