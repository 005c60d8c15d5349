"""The credential of a request of SQS: a signature by a token, or none.

The access key is the id of a token, and the secret is the text of the token. Where no token is
needed, clients still sign, with any key and any secret; such signatures are ignored, unless the key
is the id of a token.
"""

from __future__ import annotations

import re

from millstream.server.core import Core
from millstream.server.gateways.sqs.sigv4 import SignedRequest, verify

SERVICES = frozenset({"sqs", "sns", "sts"})

_SCOPE = re.compile(
    rb"AWS4-HMAC-SHA256 +Credential=([^/, ]{1,200})/\d{8}/([a-z0-9-]{1,64})/[a-z0-9-]{1,32}/aws4_request"
)


def scope_of(authorization: bytes) -> tuple[str, str]:
    """Return the access key and the region that a signature names, unverified; else empty texts."""
    match = _SCOPE.match(authorization)
    if match is None:
        return "", ""
    return match[1].decode("latin-1"), match[2].decode()


class SqsCredentials:
    """Reads the credential of a signed request."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def read(self, request: SignedRequest) -> str | None:
        """Return the token that has signed a request; None for a request without a credential."""
        text = next((value for name, value in request.headers if name == "authorization"), "")
        access_key, _ = scope_of(text.encode("latin-1"))
        if not self._core.authentication.needs_tokens:
            await self._core.tokens.freshen()
            if not text or self._core.tokens.secret_of(access_key) is None:
                return None
        elif not text:
            return None
        await self._core.tokens.freshen()
        signature = verify(
            request,
            self._core.tokens.secret_of,
            now_ms=self._core.store.clock.wall_ms(),
            services=SERVICES,
        )
        return self._core.tokens.secret_of(signature.access_key_id)
