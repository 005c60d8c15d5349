"""The guard: checks every HTTP request before its body is read.

The guard finds the principal, or refuses the request: 401 without a valid token or ticket, 403 from a
page of a foreign origin or under a foreign host name, 429 beyond a quota. Routes find `principal` and
`request_id` in the state of the request. The guard also counts, traces and logs requests. It never
logs a query, because a query may hold a ticket.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable
from contextlib import ExitStack
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.cluster.read_level import (
    HOP_HEADER,
    READ_LEVEL_HEADER,
    STRONG,
    parse_read_level,
)
from millstream.errors import Denied, MillstreamError
from millstream.remote.address import SOCKET_PATH
from millstream.server.auth.access import NOBODY, NODE, Principal
from millstream.server.cluster.role import ALONE, Asker
from millstream.server.journal import ACCESS, time_text
from millstream.server.listen.credentials import HttpCredentials, only_header
from millstream.server.listen.hot import Head, HotPaths
from millstream.server.listen.origins import Headers, Origins
from millstream.server.observe.tracing import request_span
from millstream.server.problems import respond

if TYPE_CHECKING:
    from millstream.server.core import Core

PUBLIC = frozenset(
    (
        *("/", "/health", "/docs", "/demo/canvas"),
        *("/millstream.js", "/millstream.global.js", "/millstream.d.ts"),
    )
)
PUBLIC_FOLDER = "/web/"
"""Paths that need no token; handlers get the principal `NOBODY`."""

REQUEST_ID = b"x-request-id"

_access = logging.getLogger(ACCESS)
_logger = logging.getLogger("millstream.server")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class ForeignPaths(Protocol):
    """A foreign protocol on the port of HTTP; it finds the principal of its requests by itself."""

    def takes(self, scope: Scope) -> bool:
        """Whether a request is of the protocol."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose host and origin are checked."""


class WrongHost(Denied):
    """A foreign host name: DNS may have been turned against this machine."""


class Guard:
    """The outermost ASGI middleware, around the whole application."""

    def __init__(self, app: ASGIApp, core: Core) -> None:
        self.app = app
        """The guarded application."""
        self.hot: HotPaths | None = None
        """The hot endpoints, which bypass the application and call `principal_now`."""
        self.foreign: ForeignPaths | None = None
        """The paths of foreign protocols on this port, which read credentials of their own."""
        self._core = core
        self._origins = Origins(core.settings.origins)
        self._checks_host = core.settings.is_loopback()
        self._credentials = HttpCredentials()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request_id = self.request_id(scope)
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        own_headers = [(REQUEST_ID, request_id.encode()), *self._origins.headers(scope)]
        watched = _Watched(self._core, scope, receive, send, own_headers)
        with watched, ExitStack() as held:
            try:
                self._check_host(scope)
                if (preflight := self._origins.preflight(scope)) is not None:
                    await watched.refuse(preflight)
                    return
                is_foreign = self.foreign is not None and self.foreign.takes(scope)
                self._origins.check(scope, may_change=is_foreign)
                if self.foreign is not None and is_foreign:
                    await self.foreign.answer(scope, watched.receive, watched.send)
                    return
                principal = await self._principal(scope)
                watched.principal = principal.name
                held.enter_context(self._core.admission.entered(principal))
            except MillstreamError as error:
                self._core.admission.refuse_entry(error)
                await watched.refuse(respond(error))
                return
            scope["state"]["principal"] = principal
            scope["state"]["count_received"] = watched.count_received
            watched.count_writes()
            with request_span(scope):
                if not await self._hand_on(scope, watched):
                    await self.app(scope, watched.receive, watched.send)

    def request_id(self, scope: Scope) -> str:
        """Return the id that a request came with, or a new id."""
        return _given_id(scope) or secrets.token_hex(8)

    def id_of_hot(self, head: Head) -> str:
        """As `request_id`, for a hot request."""
        header = head.get(REQUEST_ID)
        text = None if header is None else header.decode("latin-1").strip()
        return text if text and _REQUEST_ID.fullmatch(text) else secrets.token_hex(8)

    def is_welcome(self, scope: Scope, head: Head) -> bool:
        """Whether a hot request of a foreign protocol has this host's name and no foreign origin."""
        if self._checks_host and not _is_loopback(head.get(b"host", b"").decode("latin-1").strip()):
            return False
        return b"origin" not in head and b"sec-fetch-site" not in head

    def principal_now(self, scope: Scope, head: Head) -> Principal | None:
        """Return the principal of a hot request without waiting; None also for tickets.

        Refuses nothing: None sends a request through the framework, which refuses with a reason.
        """
        if self._checks_host and not _is_loopback(head.get(b"host", b"").decode("latin-1").strip()):
            return None
        try:
            if b"origin" in head or b"sec-fetch-site" in head:
                self._origins.check(scope)
                if self._origins.is_other(scope):
                    return None  # the answer needs headers of CORS
            text = self._credentials.read_now(scope) if b"authorization" in head else None
        except MillstreamError:
            return None
        seat = self._core.seat
        if seat is not None and READ_LEVEL_HEADER.encode() in head:
            return None
        if seat is not None and text is not None and seat.is_node(text):
            return None
        return self._core.authentication.principal_now(text)

    async def _hand_on(self, scope: Scope, watched: _Watched) -> bool:
        """Whether the leading node of the cluster has answered in the place of this one."""
        relay, asker = self._core.relay, scope["state"].get("asker", ALONE)
        if relay is None or not relay.takes(scope, asker):
            return False
        return await relay.hand_on(scope, watched.receive, watched.send, asker)

    # Who asks.

    async def _principal(self, scope: Scope) -> Principal:
        """Return the principal of a request; pages that need no token have the principal `NOBODY`."""
        credential = await self._credentials.read(scope)
        seat, authentication = self._core.seat, self._core.authentication
        if self._core.relay is not None:
            scope["state"]["asker"] = _asker(scope, credential)
        if seat is not None and credential is not None and seat.is_node(credential):
            return NODE
        is_public = scope["path"] in PUBLIC or scope["path"].startswith(PUBLIC_FOLDER)
        if credential is None and authentication.needs_tokens and is_public:
            return NOBODY
        return await authentication.principal_of(credential)

    # Checks of host and origin.

    def _check_host(self, scope: Scope) -> None:
        """Refuse foreign host names on loopback, so that DNS rebinding reaches nothing."""
        if self._checks_host:
            host = only_header(scope, b"host")
            if host is None or not _is_loopback(host):
                raise WrongHost("this server is reached as localhost or 127.0.0.1 only")


class _Watched:
    """Counts the bytes of a request, adds its id and headers of CORS to the answer, and logs it."""

    def __init__(
        self, core: Core, scope: Scope, receive: Receive, send: Send, own_headers: Headers
    ) -> None:
        self.principal = ""
        self._core = core
        self._scope = scope
        self._receive = receive
        self._send = send
        self._own_headers = own_headers
        self._is_socket = scope["type"] == "websocket"
        self._is_room = self._is_socket and scope["path"] != SOCKET_PATH
        """A room has its own limits and figures for slow clients."""
        self._status = 0
        self._received = 0
        self._sent = 0

    def __enter__(self) -> None:
        self._began_s = self._core.store.clock.seconds()
        self._core.meter.requests_open.count += 1

    def __exit__(self, *_: object) -> None:
        meter = self._core.meter
        meter.requests_open.count -= 1
        if self._is_socket and self._status == 101:
            meter.sockets.dec()
        meter.requests.add(self._status or 500)
        if self._core.settings.log_requests:
            _access.info("%s", self._line())
        elif self._is_socket and self._status != 101:
            facts = {"path": self._path(), "status": self._status, "principal": self.principal}
            _logger.warning("socket_refused", extra=facts)

    async def receive(self) -> Message:
        """Return the next message of the client, and count its bytes."""
        began_s = self._core.store.clock.seconds()
        message = await self._receive()
        kind = message["type"]
        if kind == "http.request":
            size = len(message.get("body", b""))
            self._note_wait(began_s, size, is_answer=False)
        elif kind == "websocket.receive":
            size = len(message.get("bytes") or message.get("text") or b"")
        else:
            return message
        self.count_received(size)
        return message

    def count_received(self, size: int) -> None:
        """Count received bytes, also of frames that bypass `receive`."""
        self._received += size
        self._core.meter.received_bytes.count += size

    async def send(self, message: Message) -> None:
        """Send a message of the application, with the headers of the guard, and count its bytes."""
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            self._status = message["status"]
            if (count_answer := self._scope["state"].get("count_answer")) is not None:
                count_answer(self._status)
            message = _with_headers(message, self._own_headers)
        elif kind == "websocket.accept":
            self._status = 101
            self._core.meter.sockets.inc()
            message = _with_headers(message, self._own_headers)
        elif kind == "websocket.close":
            self._status = self._status or 403
        else:
            size = len(message.get("body") or message.get("bytes") or message.get("text") or b"")
            self._sent += size
            self._core.meter.sent_bytes.count += size
            began_s = self._core.store.clock.seconds()
            await self._send(message)
            if not self._is_room:
                self._note_wait(began_s, size, is_answer=True)
            return
        await self._send(message)

    def _note_wait(self, began_s: float, size: int, *, is_answer: bool) -> None:
        """Log a long wait for the client's connection."""
        slow = self._core.admission.slow
        waited_s = self._core.store.clock.seconds() - began_s
        if waited_s >= slow.slow_s:
            request = f"{self._method()} {self._path()}"
            slow.note_client(
                request, self.principal, waited_s=waited_s, size=size, is_answer=is_answer
            )

    def count_writes(self) -> None:
        """Count bytes that the application writes directly, without `send`."""
        write = self._scope["state"].get("write")
        if write is None:
            return

        def counted(frame: bytes) -> bool:
            is_written: bool = write(frame)
            if is_written:
                self._sent += len(frame)
                self._core.meter.sent_bytes.count += len(frame)
            return is_written

        self._scope["state"]["write"] = counted

    async def refuse(self, response: Response) -> None:
        """Answer without the application; a WebSocket is refused before its handshake ends."""
        prefix = ""
        if self._is_socket:
            await self._receive()  # websocket.connect
            if "websocket.http.response" not in self._scope.get("extensions", {}):
                await self.send({"type": "websocket.close", "code": 1008})
                return
            prefix = "websocket."
        await self.send(
            {
                "type": f"{prefix}http.response.start",
                "status": response.status_code,
                "headers": response.raw_headers,
            }
        )
        await self.send({"type": f"{prefix}http.response.body", "body": response.body})

    def _line(self) -> str:
        clock = self._core.store.clock
        passed_s = clock.seconds() - self._began_s
        return msgspec.json.encode(
            {
                "time": time_text(clock.wall_ms()),
                "level": "info",
                "event": "request",
                "request_id": self._scope["state"]["request_id"],
                "method": self._method(),
                "path": self._path(),
                "status": self._status or 500,
                "ms": round(passed_s * 1000, 3),
                "received_bytes": self._received,
                "sent_bytes": self._sent,
                "principal": self.principal,
            }
        ).decode()

    def _method(self) -> str:
        return "SOCKET" if self._is_socket else str(self._scope["method"])

    def _path(self) -> str:
        return str(self._scope["path"].encode("utf-8", "backslashreplace").decode())


def _asker(scope: Scope, credential: str | None) -> Asker:
    """Return the facts that a node needs for handing a request on."""
    header = only_header(scope, READ_LEVEL_HEADER.encode())
    level = STRONG if header is None else parse_read_level(header)
    hop = HOP_HEADER.encode()
    is_handed_on = any(name == hop for name, _ in scope["headers"])
    return Asker(credential or "", level, is_handed_on)


def _given_id(scope: Scope) -> str | None:
    text = only_header(scope, REQUEST_ID)
    return text if text is not None and _REQUEST_ID.fullmatch(text) else None


def _with_headers(message: Message, added: Headers) -> Message:
    headers: Iterable[Any] = message.get("headers") or ()
    return {**message, "headers": [*headers, *added]}


@lru_cache(maxsize=64)
def _is_loopback(host: str) -> bool:
    """Whether a Host header names this machine as only itself does."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if any(char in host for char in "/?#@\\"):
            return False
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
