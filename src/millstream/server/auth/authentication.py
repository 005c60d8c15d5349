"""Authentication: from the credential that a client shows to the principal that it is.

How a credential looks in its bytes is a matter of each protocol: a bearer header, a query, a line, a
SASL exchange, a signature over the body. So every protocol brings a `CredentialReader`; this
module finds the principal of a credential for all protocols.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from millstream.clock import Clock
from millstream.errors import Unauthenticated
from millstream.server.auth import tickets
from millstream.server.auth.access import ANYONE_HERE, Principal
from millstream.server.auth.tokens import TEXT_CHARS_MAX, Tokens

Request_contra = TypeVar("Request_contra", contravariant=True)


class CredentialReader(Protocol[Request_contra]):
    """Finds the credential in a request of one protocol.

    The store keeps digests of tokens only. So a client must show the token itself: a protocol in
    which clients prove a secret without showing it (SigV4, SCRAM) needs a secret of its own.
    """

    async def read(self, request: Request_contra) -> str | None:
        """Return the token or ticket that a request shows; None for a request without a credential.

        The reader may wait for more of the request, such as its body. Raises `Unauthenticated` for a
        credential that is malformed: an anonymous client is not one that failed to authenticate.
        """


class Authentication:
    """Says whose a credential is; belongs to one event loop."""

    def __init__(self, tokens: Tokens, clock: Clock, *, needs_tokens: bool) -> None:
        self.needs_tokens = needs_tokens
        """Whether a client must show a credential."""
        self._tokens = tokens
        self._clock = clock

    async def principal_of(self, credential: str | None) -> Principal:
        """Return the client that shows a credential; a wrong one is refused even if none is needed."""
        if credential is None:
            if self.needs_tokens:
                raise Unauthenticated
            return ANYONE_HERE
        if len(credential) > TEXT_CHARS_MAX:
            raise Unauthenticated
        if not credential.startswith(tickets.PREFIX):
            return await self._tokens.authenticate(credential)
        key = await self._tokens.ticket_key()
        principal = tickets.verify(key, credential, wall_ms=self._clock.wall_ms())
        if not principal.token and self.needs_tokens:
            raise Unauthenticated
        return await self._tokens.confirm(principal)

    def principal_now(self, credential: str | None) -> Principal | None:
        """As `principal_of`, without waiting; None if it must be waited for, or is refused."""
        if credential is None:
            return None if self.needs_tokens else ANYONE_HERE
        if len(credential) > TEXT_CHARS_MAX or credential.startswith(tickets.PREFIX):
            return None
        return self._tokens.authenticate_now(credential)
