"""The register: the tokens of a store, as the store keeps them.

The register is a reserved log, with an entry for each new token and for each revocation. A reader
continues at its last offset. Entries are JSON:

    {"type": "made", "name": ..., "id": ..., "digest": ..., "permissions": [...], "created": ...}
    {"type": "revoked", "id": ...}

When most entries are about revoked tokens, a single commit rewrites the register.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cached_property

import msgspec
from msgspec import Struct

from millstream.errors import AlreadyExists, CorruptionError, EndMoved, NotFound, Truncated
from millstream.log.model.block import RecordBlock
from millstream.record import LogInfo
from millstream.rooms.tickets import BOOK
from millstream.server.auth.permission import Permission, parse_permissions
from millstream.threads.database import Millstream

LOG = BOOK

TIDY_ENTRIES_MIN = 10_000
"""A register with fewer entries is never rewritten."""

TIDY_SHARE = 4
"""A larger register is rewritten once it has this many entries per live token."""

TIDY_BATCH = 10_000
"""Entries per append: well below the limit of a batch."""


class Token(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="made", dict=True):
    """The entry of a new token, which is valid until its revocation or its expiry.

    The entry holds no secret: nobody can log in with it.
    """

    name: str
    id: str
    digest: str
    permissions: list[str]
    created: int
    expires: int | None = None
    """Milliseconds since the epoch."""
    sealed: str = ""
    """The secret, sealed by a key outside of the store, to verify signatures; empty without a key."""

    @cached_property
    def allowed(self) -> tuple[Permission, ...]:
        """The parsed permissions."""
        return parse_permissions(self.permissions)

    def has_expired(self, wall_ms: int) -> bool:
        """Whether the token has expired."""
        return self.expires is not None and self.expires <= wall_ms


class Revoked(Struct, frozen=True, kw_only=True, tag="revoked"):
    """The entry of a revocation."""

    id: str


_decode = msgspec.json.Decoder(Token | Revoked).decode
encode_entry = msgspec.json.Encoder().encode
_NOTHING = encode_entry(Revoked(id=""))
"""An entry without effect. It goes first, so that the commit fails if the register has moved on."""


class Register:
    """The valid tokens as of an offset of the log. Pure: the caller reads the log."""

    def __init__(self) -> None:
        self.by_id: dict[str, Token] = {}
        self.ids: dict[str, str] = {}
        """Names and the ids of their tokens."""
        self.position = 0
        """The first unread offset."""
        self._log_created: datetime | None = None

    def unread(self, log: LogInfo | None) -> range:
        """Return the unread offsets of the log.

        A log that was created anew is read from its start: the register forgets all tokens first.
        """
        start, end, created = (
            (0, 0, None) if log is None else (log.start_offset, log.end_offset, log.created)
        )
        if created != self._log_created or not start <= self.position <= end:
            self.by_id.clear()
            self.ids.clear()
            self.position, self._log_created = start, created
        return range(self.position, end)

    def take(self, blocks: Iterable[RecordBlock]) -> None:
        """Apply the entries of blocks."""
        for block in blocks:
            for record in block.records():
                self._apply(record.value or b"")
            self.position = block.offsets.stop

    def _apply(self, value: bytes) -> None:
        try:
            entry = _decode(value)
        except msgspec.MsgspecError as error:
            raise CorruptionError(
                f"the register of tokens, {LOG!r}, is damaged: {error}"
            ) from error
        if isinstance(entry, Token):
            self.by_id[entry.id] = entry
            self.ids[entry.name] = entry.id
        else:
            revoked = self.by_id.pop(entry.id, None)
            if revoked is not None and self.ids.get(revoked.name) == revoked.id:
                del self.ids[revoked.name]


class Registrar:
    """Reads and writes the register of an open store."""

    def __init__(self, ms: Millstream) -> None:
        self._ms = ms
        self._register = Register()

    @property
    def position(self) -> int:
        """The end of the register, as it was last read."""
        return self._register.position

    def tokens(self) -> list[Token]:
        """Return all tokens by name, with expired tokens until their revocation."""
        return sorted(self._read().by_id.values(), key=lambda token: token.name)

    def add(self, made: Token) -> None:
        """Add a token; raises `AlreadyExists` if its name is in use."""
        while True:
            register = self._read()
            if made.name in register.ids:
                raise AlreadyExists(
                    f"there is a token {made.name!r} already; revoke it first, or take another "
                    "name",
                    name=made.name,
                )
            if self._write(made):
                return

    def revoke(self, name: str) -> Token:
        """Revoke a token by its name or id."""
        while True:
            register = self._read()
            made = register.by_id.get(register.ids.get(name, name))
            if made is None:
                raise NotFound(
                    f"there is no token {name!r}; `millstream token list` shows them", name=name
                )
            if self._write(Revoked(id=made.id)):
                self._tidy()
                return made

    def _read(self) -> Register:
        log, register = self._ms.log(LOG), self._register
        while unread := register.unread(log.info()):
            try:
                register.take(log.read_blocks(unread.start, unread.stop))
            except Truncated:
                pass  # another process has rewritten the register
        return register

    def _write(self, entry: Token | Revoked) -> bool:
        """Append an entry; False if another process has written since the last read."""
        key = entry.name if isinstance(entry, Token) else None
        try:
            end = self._register.position
            self._ms.log(LOG).append(encode_entry(entry), key=key, expect_end=end)
        except EndMoved:
            return False
        return True

    def _tidy(self) -> None:
        """Rewrite the register if few entries are about live tokens."""
        register = self._read()
        info = self._ms.log(LOG).info()
        if info is None or len(info) <= max(TIDY_ENTRIES_MIN, TIDY_SHARE * len(register.by_id)):
            return
        live = [encode_entry(made) for made in register.by_id.values()]
        end = register.position
        try:
            with self._ms.transaction() as tx:
                tx.append(LOG, _NOTHING, expect_end=end)
                for first in range(0, len(live), TIDY_BATCH):
                    tx.append_many(LOG, live[first : first + TIDY_BATCH])
                tx.truncate(LOG, before=end)
        except EndMoved:
            pass  # another process has written: the next revocation tries again
