"""Hot requests: the most frequent requests, answered without the framework.

The connection offers a complete request to the hot endpoints before it makes a task. If they take the
request, they answer by a `HotCycle`, and the connection goes on as after any request. If not, nothing
has happened, and the request goes through the framework. `rest/hot.py` has the measured gain.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from millstream.server.listen.connections import Connections

BODY_BYTES_MAX = 64 * 1024
"""The largest body of a hot request."""

ENDINGS = (b"/records", b"/messages", b"/claims", b"/ack")
"""The last parts of the addresses of hot requests."""

SQS_PATH = re.compile(rb"/(?:[0-9]{12}/[A-Za-z0-9_.%-]{1,250})?")
"""The addresses of requests of SQS: the root, or a queue of an account."""

Head = dict[bytes, bytes]
"""The headers of a hot request, by their names in lower case; no header is repeated."""

_NOT_HOT = frozenset({b"transfer-encoding", b"expect", b"upgrade"})


class HotPaths(Protocol):
    """The endpoints that answer hot requests."""

    def begin(self, scope: Scope, head: Head, body: bytes, cycle: HotCycle) -> bool:
        """Answer a request by `cycle.respond`, now or later; False if nothing was done."""


class HotProtocol(Protocol):
    """A foreign protocol on the port of HTTP, as the hot road uses it."""

    def takes(self, scope: Scope) -> bool:
        """Whether a request is of the protocol."""

    def begin_hot(self, scope: Scope, head: Head, body: bytes, cycle: HotCycle) -> None:
        """Answer a complete request by `cycle.respond`, later."""


class HotConnection(Protocol):
    """The part of a connection that a cycle uses."""

    transport: Any
    all_connections: Connections

    def count_answer(self, status: int) -> None:
        """Count the status of an answer."""

    def on_hot_complete(self) -> None:
        """Go on with the next request."""

    def note_running(self, cycle: HotCycle) -> None:
        """Tell a request that takes longer when its client leaves."""


class LeaveEvent(Protocol):
    """An event: the client of a request has left."""

    def set(self) -> None:
        """Tell the request."""


class _Unheard:
    """An event without waiters: the body of a hot request is complete."""

    def set(self) -> None:
        """Nothing happens."""


class _Cancelling:
    """An event that cancels the task of a request."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def set(self) -> None:
        """Cancel the task: nobody reads its answer."""
        self._task.cancel()


_UNHEARD = _Unheard()


class HotCycle:
    """A hot request and its answer, with the interface of uvicorn's cycles."""

    def __init__(self, connection: HotConnection, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.response_complete = self.response_started = self.disconnected = False
        self.more_body = False
        self.body = b""
        self.message_event: LeaveEvent = _UNHEARD
        self._connection = connection

    @property
    def is_gone(self) -> bool:
        """Whether the client has left."""
        return bool(self._connection.transport.is_closing())

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Let a stopping server wait for a task, and cancel it in the end."""
        self._connection.all_connections.watch(task)

    def end_with(self, task: asyncio.Task[Any]) -> None:
        """Watch the task that answers the request, and cancel it when the client leaves."""
        self.watch(task)
        self.message_event = _Cancelling(task)
        self._connection.note_running(self)

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send the answer, and let the connection go on."""
        connection = self._connection
        self.response_complete = self.response_started = True
        if connection.transport.is_closing():
            return
        connection.count_answer(status)
        lines = [STATUS_LINE[status]]
        for name, value in (*connection.all_connections.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        connection.transport.write(b"".join((*lines, b"\r\n", body)))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_hot_complete()


def hot_head(method: bytes, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Head | None:
    """Return the headers of a request that may be hot; None for a head that excludes a hot request.

    A hot request has a small body with a known size, and no repeated header: which of two equal
    headers counts is left to the framework.
    """
    if method != b"POST" or not url.startswith(b"/"):
        return None
    if not url.endswith(ENDINGS) and not SQS_PATH.fullmatch(url):
        return None
    head = dict(headers)
    length = head.get(b"content-length", b"")
    if len(head) != len(headers) or not _NOT_HOT.isdisjoint(head):
        return None
    if not length.isdigit() or len(length) > len(str(BODY_BYTES_MAX)):
        return None
    return head if int(length) <= BODY_BYTES_MAX else None
