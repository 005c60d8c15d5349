"""Hot requests: what is asked most often, answered without the framework.

A request that has come whole in one piece is offered to the application before it becomes a task. If
the application takes it, it answers by the cycle here; the connection goes on as behind any other
request. If not, nothing has happened, and the request goes the way of all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

BODY_BYTES_MAX = 64 * 1024
"""Of the body of a hot request."""

ENDINGS = (b"/records", b"/messages", b"/claims", b"/ack")
"""How the addresses of hot requests end."""

_NOT_HOT = frozenset({b"transfer-encoding", b"expect", b"upgrade"})


class HotPaths(Protocol):
    """What answers hot requests."""

    def begin(self, scope: Scope, body: bytes, cycle: HotCycle) -> bool:
        """Answer a request by `cycle.respond`, now or later; False if nothing was done."""


class HotConnection(Protocol):
    """What a cycle needs of its connection."""

    transport: Any
    server_state: Any

    def on_response_complete(self) -> None:
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
        tasks = self._connection.server_state.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send the answer, and let the connection go on."""
        connection = self._connection
        self.response_complete = self.response_started = True
        if connection.transport.is_closing():
            return
        parts = [STATUS_LINE[status]]
        for name, value in (*connection.server_state.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        connection.transport.write(b"".join((*parts, b"\r\n", body)))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()


def is_hot(method: bytes, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request may be hot, by its head: its whole body must be small, and its size told."""
    if method != b"POST" or not url.startswith(b"/") or not url.endswith(ENDINGS):
        return False
    length = -1
    for name, value in headers:
        if name in _NOT_HOT:
            return False
        if name == b"content-length":
            if length >= 0 or not value.isdigit() or len(value) > len(str(BODY_BYTES_MAX)):
                return False
            length = int(value)
    return 0 <= length <= BODY_BYTES_MAX
