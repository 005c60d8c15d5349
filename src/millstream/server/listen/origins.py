"""Origins: which pages may use the server, and the CORS headers that tell their browsers so.

A browser names the origin of the page that sends a request. Pages of the server and of the origins
in the settings may open sockets and send requests; only these pages may read answers, by the
headers of CORS (https://fetch.spec.whatwg.org/#http-cors-protocol). Answers never allow
credentials: clients show a token or a ticket in a header, and the server knows no cookies.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import Scope

from millstream.errors import Denied, InvalidInput
from millstream.server.listen.credentials import only_header

SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing; a page of a foreign origin cannot read their answers."""

PREFLIGHT_S = 600
"""How long a browser remembers that it may send a request."""

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_HTTP_SCHEMES = {"ws": "http", "wss": "https"}
_FROM_ELSEWHERE = ("cross-site", "same-site")
"""Values of `Sec-Fetch-Site` in requests of pages from a foreign origin."""

Headers = list[tuple[bytes, bytes]]


class WrongOrigin(Denied):
    """A request of a page from a foreign origin."""


class Origins:
    """The origins of pages that may use the server."""

    def __init__(self, named: Iterable[str]) -> None:
        self._named = {_parse_named(text) for text in named}

    def check(self, scope: Scope, *, may_change: bool = False) -> None:
        """Refuse a request by which a page of a foreign origin could change something.

        With `may_change`, a method that is safe elsewhere may change something as well.
        """
        if scope["type"] == "http" and scope["method"] in SAFE and not may_change:
            return
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        if not origins:
            # Not a browser; or a browser that hides a foreign origin.
            if only_header(scope, b"sec-fetch-site") in _FROM_ELSEWHERE:
                raise WrongOrigin("pages of other origins may not change anything here")
            return
        origin = _parse(origins[0].decode("latin-1"))
        if len(origins) > 1 or origin is None or origin not in {_server(scope), *self._named}:
            raise WrongOrigin(
                "pages of this origin may not connect; the server's settings name those"
            )

    def is_other(self, scope: Scope) -> bool:
        """Whether a request comes from a page of another origin that the settings name."""
        text = only_header(scope, b"origin") if self._named else None
        return text is not None and _parse(text) in self._named

    def headers(self, scope: Scope) -> Headers:
        """Return the headers by which a page of a named origin may read the answer."""
        if not self._named:
            return []
        # A cache must not hand an answer without the header to another page.
        headers = [(b"vary", b"origin")]
        if self.is_other(scope):
            origin = (only_header(scope, b"origin") or "").encode("latin-1")
            headers.append((b"access-control-allow-origin", origin))
            headers.append((b"access-control-expose-headers", b"*"))
        return headers

    def preflight(self, scope: Scope) -> Response | None:
        """Answer a browser that asks whether a page may send a request; return None if no browser
        asks."""
        is_preflight = (
            scope["type"] == "http"
            and scope["method"] == "OPTIONS"
            and only_header(scope, b"access-control-request-method") is not None
            and self.is_other(scope)
        )
        if not is_preflight:
            return None
        allowed = {
            "access-control-allow-methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
            "access-control-allow-headers": "authorization, *",  # `*` leaves authorization out
            "access-control-max-age": str(PREFLIGHT_S),
        }
        return Response(status_code=204, headers=allowed)


def _parse_named(text: str) -> tuple[str, str, int]:
    origin = _parse(text)
    if origin is None:
        raise InvalidInput(
            f"an origin is a scheme, a host and perhaps a port, such as https://example.org, "
            f"not {text!r:.200}; name each origin by itself"
        )
    return origin


def _server(scope: Scope) -> tuple[str, str, int] | None:
    """Return the origin of the server's own pages, as the client reaches the server."""
    scheme = _HTTP_SCHEMES.get(scope["scheme"], scope["scheme"])
    return _parse(f"{scheme}://{only_header(scope, b'host') or ''}")


def _parse(text: str) -> tuple[str, str, int] | None:
    """Return the scheme, host and port of an origin; None if the text is no origin, such as `null`."""
    try:
        parts = urlsplit(text.strip().lower())
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None or parts.path not in ("", "/") or parts.query:
        return None
    return parts.scheme, parts.hostname, port
