"""Clients: the open connections of a server, and the messages that each client has claimed.

An operator asks for the connected workers, for their messages, and for the queues where they wait.
Sockets and rooms have an entry per connection. Requests over HTTP come and go, so all requests of a
token share the entry of the token, which exists while a request waits for messages or messages are
claimed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from msgspec import Struct

from millstream.clock import Clock
from millstream.server.auth.access import Principal
from millstream.server.claim_counts import ClaimCounts, HeldMessages

Kind = Literal["socket", "room", "http"]


class Client(Struct, eq=False, kw_only=True):
    """An open connection, or the HTTP requests of a token."""

    kind: Kind
    name: str
    """The name of the token."""
    address: str = ""
    """The address and port of the client; empty if unknown."""
    since_ms: int | None = None
    """When the connection was opened, in milliseconds since the epoch."""
    room: str = ""
    user: str = ""
    """The user of a room; empty for a client that only listens."""
    claims: ClaimCounts | None = None
    """Counts the claimed messages; None for a client of a room."""

    def held(self, now_ms: int) -> list[HeldMessages]:
        """Return the queues from which the client holds messages, or for whose messages it waits."""
        return [] if self.claims is None else self.claims.held(now_ms)


class Clients:
    """The clients of one server; belongs to the event loop that serves."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[Client, None] = {}

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._open))

    @contextmanager
    def connected(
        self,
        kind: Kind,
        principal: Principal,
        address: object = None,
        *,
        room: str = "",
        user: str = "",
        claims: ClaimCounts | None = None,
    ) -> Iterator[None]:
        """List a connection while the block runs; `address` is the pair of a host and a port."""
        client = Client(
            kind=kind,
            name=principal.name,
            address=_shown(address),
            since_ms=self._clock.wall_ms(),
            room=room,
            user=user,
            claims=claims,
        )
        self._open[client] = None
        try:
            yield
        finally:
            del self._open[client]


def _shown(address: object) -> str:
    if not isinstance(address, tuple | list) or len(address) < 2:
        return ""
    host, port = str(address[0]), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
