"""The credential of a request of SQS: a signature by a token, or none.

The access key is the id of a token, and the secret is the text of the token. Where no token is
needed, clients still sign, with any key and any secret; such signatures are ignored, unless the key
is the id of a token.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from millstream.server.core import Core
from millstream.server.gateways.sqs.names import is_account, is_region
from millstream.server.gateways.sqs.sigv4 import SignedRequest, verify

SERVICES = frozenset({"sqs", "sns", "sts"})

SCOPE_BYTES_MAX = 400
_END = b"/aws4_request"
_SCOPE = re.compile(
    rb"AWS4-HMAC-SHA256 +Credential=([^/, ]{1,200})/\d{8}/([a-z0-9-]{1,64})/([a-z0-9-]{1,32})"
)


class Sender(NamedTuple):
    """What a signature says about its sender, unverified; texts are empty without a signature."""

    is_signed: bool
    access_key: str
    account: str
    """The access key, if it has the form of an account's id."""
    region: str
    service: str


def sender_of(authorization: bytes) -> Sender:
    """Return the sender that an `Authorization` header names."""
    scope, end, _ = authorization.partition(_END)
    if not end or len(scope) > SCOPE_BYTES_MAX:
        return Sender(bool(authorization), "", "", "", "")
    return _sender_of(scope)


@lru_cache(maxsize=1_024)
def _sender_of(scope: bytes) -> Sender:
    """Return the sender of a scope: a program has the same scope for a day."""
    match = _SCOPE.fullmatch(scope)
    if match is None:
        return Sender(True, "", "", "", "")
    key, region = match[1].decode("latin-1"), match[2].decode()
    account, region = key if is_account(key) else "", region if is_region(region) else ""
    return Sender(True, key, account, region, match[3].decode())


class SqsCredentials:
    """Reads the credential of a signed request."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def must_read(self, sender: Sender) -> bool:
        """Return whether the signature of a request must be verified."""
        core = self._core
        if core.authentication.needs_tokens:
            return True
        if not sender.is_signed:
            return False
        await core.tokens.freshen()
        return core.tokens.secret_of(sender.access_key) is not None

    async def read(self, request: SignedRequest) -> str | None:
        """Return the token that has signed a request; None for a request without a credential."""
        if not any(name == "authorization" and value for name, value in request.headers):
            return None
        await self._core.tokens.freshen()
        signature = verify(
            request,
            self._core.tokens.secret_of,
            now_ms=self._core.store.clock.wall_ms(),
            services=SERVICES,
        )
        return self._core.tokens.secret_of(signature.access_key_id)
