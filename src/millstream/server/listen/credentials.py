"""Credentials over HTTP: a bearer token or ticket in a header, or a ticket in the query."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.types import Scope

from millstream.errors import Unauthenticated
from millstream.server.auth import tickets


class HttpCredentials:
    """Reads the credential of an HTTP request or of a WebSocket's handshake, by their head alone."""

    async def read(self, request: Scope) -> str | None:
        """Return the token or ticket of a request; None for a request without a credential."""
        return self.read_now(request)

    def read_now(self, scope: Scope) -> str | None:
        """As `read`, without a coroutine. Removes a ticket from the query of the request."""
        if any(name == b"authorization" for name, _ in scope["headers"]):
            scheme, _, text = (only_header(scope, b"authorization") or "").partition(" ")
            if scheme.lower() != "bearer" or not text.strip():
                raise Unauthenticated
            return text.strip()
        query = scope.get("query_string", b"")
        is_allowed = scope["type"] == "websocket" or scope["method"] == "GET"
        if b"ticket=" not in query or not is_allowed:
            return None
        fields = query.split(b"&")
        shown = [field for field in fields if field.startswith(b"ticket=")]
        if not shown:
            return None
        # Removed: routes have no use for a ticket, and servers log addresses.
        scope["query_string"] = b"&".join(field for field in fields if field not in shown)
        text = unquote(shown[0].removeprefix(b"ticket=").decode("latin-1"))
        if len(shown) != 1 or not text.startswith(tickets.PREFIX):
            raise Unauthenticated  # a token is no ticket: queries are kept in histories
        return text


def only_header(scope: Scope, name: bytes) -> str | None:
    """Return the value of a header that is there exactly once; else None."""
    values: list[bytes] = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1").strip() if len(values) == 1 else None
