"""Hot requests: what is asked most often, answered without the framework.

A request that has come whole in one piece is offered to the application before it becomes a task. If
the application takes it, it answers by the cycle here; the connection goes on as behind any other
request. If not, nothing has happened, and the request goes the way of all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from millstream.server.listen.connections import Connections

BODY_BYTES_MAX = 64 * 1024
"""Of the body of a hot request."""

ENDINGS = (b"/records", b"/messages", b"/claims", b"/ack")
"""How the addresses of hot requests end."""

Head = dict[bytes, bytes]
"""The headers of a hot request, by their names in lower case: none of them is repeated."""

_NOT_HOT = frozenset({b"transfer-encoding", b"expect", b"upgrade"})


class HotPaths(Protocol):
    """What answers hot requests."""

    def begin(self, scope: Scope, head: Head, body: bytes, cycle: HotCycle) -> bool:
        """Answer a request by `cycle.respond`, now or later; False if nothing was done."""


class HotConnection(Protocol):
    """What a cycle needs of its connection."""

    transport: Any
    all_connections: Connections

    def count_answer(self, status: int) -> None:
        """Be told what a request was answered."""

    def on_hot_complete(self) -> None:
        """Go on with the next request."""


class _Unheard:
    """An event for which nobody waits: the body of a hot request is there."""

    def set(self) -> None:
        """Nothing happens."""


_UNHEARD = _Unheard()


class HotCycle:
    """One request and its answer; to its connection it looks like any other cycle."""

    def __init__(self, connection: HotConnection, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.response_complete = self.response_started = self.disconnected = False
        self.more_body = False
        self.body = b""
        self.message_event = _UNHEARD
        self._connection = connection

    @property
    def is_gone(self) -> bool:
        """Whether the client has left: an answer would reach nobody."""
        return bool(self._connection.transport.is_closing())

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Have the server wait for a task when it stops, and cut it off at last."""
        self._connection.all_connections.watch(task)

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send the answer, and let the connection go on."""
        connection = self._connection
        self.response_complete = self.response_started = True
        if connection.transport.is_closing():
            return
        connection.count_answer(status)
        parts = [STATUS_LINE[status]]
        for name, value in (*connection.all_connections.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        connection.transport.write(b"".join((*parts, b"\r\n", body)))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_hot_complete()


def hot_head(method: bytes, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Head | None:
    """The headers of a request that may be hot; None if it is not, by its head.

    Its whole body must be small, and its size told. Where a header is repeated, it matters to some
    which of them counts: such a request goes the way of all.
    """
    if method != b"POST" or not url.startswith(b"/") or not url.endswith(ENDINGS):
        return None
    head = dict(headers)
    length = head.get(b"content-length", b"")
    if len(head) != len(headers) or not _NOT_HOT.isdisjoint(head):
        return None
    if not length.isdigit() or len(length) > len(str(BODY_BYTES_MAX)):
        return None
    return head if int(length) <= BODY_BYTES_MAX else None
