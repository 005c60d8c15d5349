"""The address of a server: where it is, and how to show who we are.

A token is never part of the address that is shown: not in a repr, an error or a log.
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
"""Where a server answers commands, below its address."""

TOKEN_VARIABLE = "MILLSTREAM_TOKEN"

PING_S = 20.0
"""After so long without a word a server is asked whether it is there, and given as long to say so."""

_SCHEMES = {"http": "ws", "ws": "ws", "https": "wss", "wss": "wss"}


@dataclass(frozen=True, slots=True)
class Address:
    """A server, and what it takes to be let in."""

    shown: str
    """As the user wrote it; it holds no secret."""
    socket_url: str
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    read_level: ReadLevel = STRONG
    """How fresh reads must be, if a node of a cluster answers."""
    is_handed_on: bool = False
    """Whether a node asks on behalf of its client: the other one must not hand it on again."""
    ping_s: float = PING_S
    """How long it may be silent before it is asked whether it is there; then it is given as long."""

    @property
    def stays(self) -> bool:
        """Whether a client stays at this node, rather than go to the leading one."""
        return self.read_level != STRONG

    @property
    def host(self) -> str:
        """The name or number of the machine."""
        return _split(self.socket_url).hostname or ""

    @property
    def port(self) -> int:
        """Where the server listens."""
        return _split(self.socket_url).port or (80 if self.tls is None else 443)

    @property
    def host_header(self) -> str:
        """Host and port as a request names them."""
        return _split(self.socket_url).netloc

    @property
    def target(self) -> str:
        """The path of the socket."""
        return _split(self.socket_url).path

    def headers(self) -> dict[str, str]:
        """What is sent beside the request for a socket."""
        found = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if self.read_level != STRONG:
            found[READ_LEVEL_HEADER] = str(self.read_level)
        if self.is_handed_on:
            found[HOP_HEADER] = "1"
        return found


def parse_address(
    url: str,
    *,
    token: str | None = None,
    ca: str | None = None,
    read_level: str = "strong",
    is_handed_on: bool = False,
) -> Address:
    """Read a URL. Without a token, the one in MILLSTREAM_TOKEN is used, if there is one."""
    parts = _split(url)
    scheme = _SCHEMES[parts.scheme]
    if ca is not None and scheme != "wss" and not is_handed_on:
        raise InvalidInput("ca= is for https:// and wss:// addresses only")
    return Address(
        shown=f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}",
        socket_url=f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}{SOCKET_PATH}",
        token=_check_token(os.environ.get(TOKEN_VARIABLE, "") if token is None else token),
        tls=_trusting(ca) if scheme == "wss" else None,
        read_level=parse_read_level(read_level),
        is_handed_on=is_handed_on,
    )


def _split(url: str) -> SplitResult:
    """The parts of a URL. What cannot be read is not repeated: it may hold a secret."""
    try:
        parts = urlsplit(url)
        named, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(
            "this address cannot be read; expected e.g. http://127.0.0.1:8080"
        ) from error
    if "@" in parts.netloc:
        raise InvalidInput(
            f"an address holds no user or token: pass token=, or set {TOKEN_VARIABLE}"
        )
    if not named:
        raise InvalidInput(f"this address names no host; expected e.g. {parts.scheme}://127.0.0.1")
    if parts.query or parts.fragment:
        raise InvalidInput("an address has no ?query and no #fragment: pass options as arguments")
    return parts


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
