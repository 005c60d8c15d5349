"""The address of a server, with its credentials.

The shown address never contains a token: not in a repr, an error or a log.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from millstream.cluster.read_level import (
    HOP_HEADER,
    READ_LEVEL_HEADER,
    STRONG,
    ReadLevel,
    parse_read_level,
)
from millstream.engine.place import is_address as is_address
from millstream.errors import CannotOpen, InvalidInput

if TYPE_CHECKING:
    import ssl

SOCKET_PATH = "/socket"
"""The path of a server's streaming socket, below its address."""

TOKEN_VARIABLE = "MILLSTREAM_TOKEN"

PING_S = 20.0
"""After this silence a server is pinged, and gets the same time to answer."""

_SCHEMES = {"http": "ws", "ws": "ws", "https": "wss", "wss": "wss"}


@dataclass(frozen=True, slots=True)
class Address:
    """A server and its credentials."""

    shown: str
    """As the user wrote it; it holds no secret."""
    socket_url: str
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    read_level: ReadLevel = STRONG
    """How fresh reads must be, if a node of a cluster answers."""
    is_handed_on: bool = False
    """Whether a node hands on a request of its client: the receiving node must not hand it on
    again."""
    ping_s: float = PING_S
    """The silence before a ping; the server gets the same time to answer."""

    @property
    def stays(self) -> bool:
        """Whether a client stays at this node, rather than move to the leading node."""
        return self.read_level != STRONG

    @property
    def host(self) -> str:
        """Return the name or number of the machine."""
        return _split(self.socket_url).hostname or ""

    @property
    def port(self) -> int:
        """Return the port of the server."""
        return _split(self.socket_url).port or (80 if self.tls is None else 443)

    @property
    def host_header(self) -> str:
        """Return host and port for the Host header."""
        return _split(self.socket_url).netloc

    @property
    def target(self) -> str:
        """Return the path of the socket."""
        return _split(self.socket_url).path

    def headers(self) -> dict[str, str]:
        """Return the headers of a request: token, read level and hop."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if self.read_level != STRONG:
            headers[READ_LEVEL_HEADER] = str(self.read_level)
        if self.is_handed_on:
            headers[HOP_HEADER] = "1"
        return headers


def parse_address(
    url: str,
    *,
    token: str | None = None,
    ca: str | None = None,
    read_level: str = "strong",
    is_handed_on: bool = False,
) -> Address:
    """Parse a URL. Without a token, use the variable MILLSTREAM_TOKEN if it is set."""
    split = _split(url)
    scheme = _SCHEMES[split.scheme]
    if ca is not None and scheme != "wss" and not is_handed_on:
        raise InvalidInput("ca= is for https:// and wss:// addresses only")
    return Address(
        shown=f"{split.scheme}://{split.netloc}{split.path.rstrip('/')}",
        socket_url=f"{scheme}://{split.netloc}{split.path.rstrip('/')}{SOCKET_PATH}",
        token=_check_token(os.environ.get(TOKEN_VARIABLE, "") if token is None else token),
        tls=_trusting(ca) if scheme == "wss" else None,
        read_level=parse_read_level(read_level),
        is_handed_on=is_handed_on,
    )


def _split(url: str) -> SplitResult:
    """Split a URL. An error does not repeat the URL, which may hold a secret."""
    try:
        split = urlsplit(url)
        named, _ = split.hostname, split.port
    except ValueError as error:
        raise InvalidInput(
            "this address cannot be read; expected e.g. http://127.0.0.1:8080"
        ) from error
    if "@" in split.netloc:
        raise InvalidInput(
            f"an address holds no user or token: pass token=, or set {TOKEN_VARIABLE}"
        )
    if not named:
        raise InvalidInput(f"this address names no host; expected e.g. {split.scheme}://127.0.0.1")
    if split.query or split.fragment:
        raise InvalidInput("an address has no ?query and no #fragment: pass options as arguments")
    return split


def _check_token(token: Any) -> str:
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise InvalidInput("a token is printable ASCII text, as `millstream token create` gave it")
    return str(token).strip()


def _trusting(ca: str | None) -> ssl.SSLContext:
    import ssl

    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise CannotOpen(
            f"the certificates in {ca!r} cannot be read: {error}", path=str(ca)
        ) from error
