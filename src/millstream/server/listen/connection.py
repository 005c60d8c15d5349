"""HTTP connections: bounds and timeouts that hold before a request is understood.

There are bounds on the number of connections, on the size of a request's head and trailers, and on
the time until they have come. The server cuts a client that does not read its answers, or goes on
sending a body that was refused.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from millstream.server.listen.connections import REFUSED_MAX, Connections
from millstream.server.listen.framed import FramedConnection, wants_frames
from millstream.server.listen.guard import Guard
from millstream.server.listen.hot import Head, HotCycle, hot_head
from millstream.server.listen.refusals import RefusalCount
from millstream.server.listen.websocket import SocketConnection
from millstream.server.settings import Settings

HEAD_S = 10.0
"""How long a request's head may take to arrive; slower senders only hold a connection."""

IDLE_S = 5.0
"""How long a connection is kept for the next request."""

PING_S = 20.0
PONG_S = 20.0
"""How often a WebSocket is pinged, and how long its client may take to answer."""

READ_S = 20.0
READ_BYTES_MIN = 64 * 1024
"""A connection is cut if its client reads fewer bytes of a waiting answer in this time."""

UNREAD_S = 2.0
UNREAD_BYTES_MAX = 256 * 1024
"""A connection is cut if more of a body comes after its request was answered."""

REFUSALS = frozenset({400, 401, 403, 405, 411, 413, 414, 415, 422, 429, 431})
"""Statuses that count as refusals of a client."""

HEAD_SLICE_BYTES = 4 * 1024
BODY_SLICE_BYTES = 64 * 1024
"""Bytes per parsing step. The parser stops behind requests that wait for their turn."""

_PLAIN = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"


class Config(uvicorn.Config):
    """Uvicorn's settings, with ours beside them."""

    def __init__(self, app: Guard, settings: Settings, **options: Any) -> None:
        self.settings = settings
        self.hot = app.hot
        times: dict[str, Any] = {
            "timeout_keep_alive": IDLE_S,
            "ws_ping_interval": PING_S,
            "ws_ping_timeout": PONG_S,
        }
        super().__init__(app, http=HttpConnection, ws=SocketConnection, **times, **options)


class HttpFlow(FlowControl):
    """Flow control with a second reason not to read: `hold`."""

    is_held = False
    """Whether reading is held, even if the running request wants to read."""

    def hold(self) -> None:
        """Read nothing until `release`."""
        self.is_held = True
        self.pause_reading()

    def release(self) -> None:
        """Read on."""
        self.is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        """Read on, unless that is held back."""
        if not self.is_held:
            super().resume_reading()


class HttpConnection(HttpToolsProtocol):
    """An HTTP connection with a bound on all but bodies, and its place among all connections."""

    if TYPE_CHECKING:
        config: Config
        flow: HttpFlow

    def __init__(self, config: Config, connections: Connections) -> None:
        state: Any = connections  # it has the attributes of uvicorn's server state
        super().__init__(config, state, {})
        self.all_connections = connections
        self._in_head = True
        self._has_begun = False
        """Whether a head has begun and is incomplete."""
        self._head_bytes = 0
        self._idle_since_s: float | None = None
        """When the last request was answered; None while a request runs."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Timers for the `head`, for the client to `read`, for an unread body to be `passed`, and for
        the `rest` of a client with many refusals."""
        self._refused = False
        self._bodiless_bytes = 0
        """Bytes of chunk extensions and trailers since the last piece of a body."""
        self._passed_over_bytes = 0
        self._unread_bytes = 0
        self._held: bytes | None = None
        """The body so far of a request that may be hot and has not begun."""
        self._hot_head: Head = {}
        """Its headers."""
        self._running: Any = None
        """The request that the application answers."""
        self._unparsed = b""
        """Unparsed bytes behind waiting requests."""
        self._patience = RefusalCount()
        self._pause_s = 0.0
        """How long the server reads nothing after the current answer."""
        self._is_let_go = False
        """Whether the connection ends after the current answer."""

    def connection_made(self, transport: Any) -> None:
        """Count the connection, or refuse it beyond the bound."""
        excess = self.all_connections.excess()
        super().connection_made(transport)
        self.flow = HttpFlow(transport)
        if excess >= REFUSED_MAX:
            transport.abort()
        self._refused = excess >= 0
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, and tell the running request that its client has left."""
        for what in list(self._timers):
            self._stop_timer(what)
        self._stop_idle_timer()
        super().connection_lost(exc)
        running, self._running = self._running, None
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        self.pipeline.clear()
        self._unparsed = b""

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Begin a request; with pipelined requests behind it, `cycle` is the last request."""
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        """Parse bytes in slices, or refuse a connection beyond the bound."""
        if self._refused:
            self._refuse(503, "Too many connections; try again later.", b"retry-after: 1\r\n")
        elif self._unparsed:
            self._unparsed += data
        elif len(data) <= HEAD_SLICE_BYTES:
            self._parse(data)
        else:
            self._unparsed = data
            self._parse_on()

    def _parse_on(self) -> None:
        """Parse bytes in slices, until a request among them has to wait for its turn.

        A client could send thousands of small requests at once, and each would be held in memory.
        """
        data, at = self._unparsed, 0
        while at < len(data) and not self.pipeline:
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                at = len(data)
                break
            size = HEAD_SLICE_BYTES if self._in_head else BODY_SLICE_BYTES
            self._parse(data[at : at + size])
            at += size
        self._unparsed = data[at:]
        if self._unparsed:
            self._stop_timer("head")  # the rest of a head is here already
            self.flow.hold()
        elif self.flow.is_held and "rest" not in self._timers:
            self.flow.release()

    def _parse(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        else:
            self._bodiless_bytes += len(data)
            self._passed_over_bytes += len(data)
        super().data_received(data)
        if self._held is not None and not self.transport.is_closing():
            self._begin_with_held()  # it has not come whole
        most = self.config.settings.head_bytes_max
        if self._in_head and self._head_bytes > most:
            self._refuse_head()
        elif not self._in_head and self._bodiless_bytes > most:
            self._refuse_trailers()
        elif "passed" in self._timers and self._passed_over_bytes > UNREAD_BYTES_MAX:
            self.transport.abort()
        elif self._in_head and (self._head_bytes or self._has_begun):
            self._expect_head()  # a head that has come whole needs no timer

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = self._has_begun = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of the head; trailers are ignored, because they could pass for headers."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the size of a complete head, and begin the request, or hold it for the hot road."""
        self._in_head = self._has_begun = False
        self._head_bytes = self._bodiless_bytes = 0
        self._stop_timer("head")
        size = len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers])
        if size > self.config.settings.head_bytes_max:
            raise ValueError("the head is too large")  # the parser stops, and answers below
        before: Any = self.cycle
        is_free = before is None or before.response_complete
        head = None
        if is_free and self.config.hot and not self.flow.write_paused:
            head = hot_head(self.parser.get_method(), self.url, self.headers)
        if head is None:
            self._begin_request()
        else:
            self._held, self._hot_head = b"", head

    def _begin_request(self) -> None:
        """Have the application answer a request in a task, whose body may be coming yet."""
        super().on_headers_complete()
        cycle = self.cycle
        if self.all_connections.is_draining:
            cycle.keep_alive = False
        self.scope["state"] |= {
            "has_come": lambda: not cycle.more_body,
            "is_gone": lambda: cycle.disconnected,
            "count_answer": self.count_answer,
        }

    def _begin_with_held(self) -> None:
        """Begin a held request in a task, with the body so far."""
        held, self._held = self._held, None
        self._begin_request()
        if held:
            super().on_body(held)

    def _begin_hot(self) -> bool:
        """Offer a complete request to the hot endpoints; False if they do not take it."""
        hot, body, before = self.config.hot, self._held, self.cycle
        assert hot is not None
        assert body is not None
        is_kept = self.parser.get_http_version() == "1.1" and self.parser.should_keep_alive()
        cycle = HotCycle(self, keep_alive=is_kept and not self.all_connections.is_draining)
        scope: Any = self.scope
        scope |= {"method": "POST", "raw_path": self.url, "query_string": b""}
        self._held, self._in_head, self.cycle = None, True, cycle  # type: ignore[assignment]
        if hot.begin(scope, self._hot_head, body, cycle):
            return True
        self._held, self._in_head, self.cycle = body, False, before
        return False

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to frames of our own, or to a WebSocket."""
        if self._get_upgrade() == b"websocket":
            super().handle_websocket_upgrade()
            return
        self.connections.discard(self)
        scope: Any = self.scope
        scope["query_string"] = self.url.partition(b"?")[2]
        FramedConnection.take_over(
            self.app,
            self.all_connections,
            self.transport,
            scope,
            frame_bytes_max=self.config.settings.frame_bytes_max,
        )

    def _should_upgrade(self) -> bool:
        asked = self._get_upgrade()
        return super()._should_upgrade() or wants_frames(self.scope["method"], self.url, asked)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body; bytes between two pieces count as overhead."""
        self._bodiless_bytes = 0
        if self._held is not None:
            self._held += body
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Finish a request; the next bytes are the head of another request."""
        if self._held is not None:
            if self._begin_hot():
                return
            self._begin_with_held()
        super().on_message_complete()
        self._in_head = True
        if self._stop_timer("passed"):
            self._go_idle()

    def on_hot_complete(self) -> None:
        """Go idle after a hot answer; a short form of `on_response_complete`."""
        if self.pipeline or self.flow.read_paused or self._is_let_go or self._pause_s:
            self.on_response_complete()
            return
        self.all_connections.total_requests += 1
        if self.transport.is_closing():
            self._see_off()
        else:
            self._go_idle()

    def note_running(self, cycle: HotCycle) -> None:
        """Note the hot request in progress, which must learn if its client leaves."""
        self._running = cycle

    def count_answer(self, status: int) -> None:
        """Count a refusal; many refusals slow a connection down, and end it in the end."""
        if status not in REFUSALS:
            return
        pause_s = self._patience.refuse(self.loop.time())
        if pause_s == math.inf:
            self._is_let_go = True
        elif pause_s:
            self._pause_s = pause_s

    def _rest(self) -> None:
        """Read nothing more for a while, or never again, because of refusals."""
        if self._is_let_go:
            self.transport.close()
            self._see_off()
            return
        pause_s, self._pause_s = self._pause_s, 0.0
        self.flow.hold()
        self._stop_timer("rest")
        self._timers["rest"] = self.loop.call_later(pause_s, self._end_rest)

    def _end_rest(self) -> None:
        self._stop_timer("rest")
        if not self.transport.is_closing():
            self._parse_on()

    def on_response_complete(self) -> None:
        """Go on after an answer; a body that is still coming is passed over for a while."""
        self._stop_idle_timer()
        super().on_response_complete()
        if self.transport.is_closing():
            self._see_off()
        elif self._is_let_go or self._pause_s:
            self._rest()
        elif self._unparsed and not self.pipeline and "rest" not in self._timers:
            self.loop.call_soon(self._end_rest)
        if self.timeout_keep_alive_task is not None:
            self._idle_since_s = self.loop.time()
        if not self._in_head and self.cycle.response_complete and not self.transport.is_closing():
            self._passed_over_bytes = 0
            self._timers["passed"] = self.loop.call_later(UNREAD_S, self.transport.abort)

    def pause_writing(self) -> None:
        """Watch a client that reads more slowly than it is answered."""
        super().pause_writing()
        if "read" not in self._timers:
            self._watch_reader()

    def resume_writing(self) -> None:
        """Stop watching a client that has read nearly all of its answers."""
        if not self.transport.is_closing():
            self._stop_timer("read")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that does not parse, or whose head was too large."""
        size = sum(len(name) + len(value) + 4 for name, value in self.headers or [])
        if size + len(getattr(self, "url", b"")) > self.config.settings.head_bytes_max:
            self._refuse_head()
        else:
            super().send_400_response(msg)
            self._see_off()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection that has been idle for too long; one timer serves many requests."""
        self.timeout_keep_alive_task = None
        if self._idle_since_s is None:
            return  # the answer of the running request sets the timer again
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._set_idle_timer(left_s)
        else:
            super().timeout_keep_alive_handler()
            self._see_off()

    def _unset_keepalive_if_required(self) -> None:
        """Note that the connection is busy; its timer looks again, and need not be moved."""
        self._idle_since_s = None

    def _go_idle(self) -> None:
        self._idle_since_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._set_idle_timer(self.timeout_keep_alive)

    def _set_idle_timer(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def _stop_idle_timer(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _expect_head(self) -> None:
        if "head" not in self._timers:
            self._timers["head"] = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_timer(self, what: str) -> bool:
        timer = self._timers.pop(what, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _see_off(self) -> None:
        """Cut a connection that is closed, unless its client goes on reading the last answer."""
        if "read" not in self._timers and self.transport.get_write_buffer_size():
            self._watch_reader()

    def _watch_reader(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._timers["read"] = self.loop.call_later(READ_S, self._look_at_reader)

    def _look_at_reader(self) -> None:
        if self.transport.get_write_buffer_size() > self._unread_bytes - READ_BYTES_MIN:
            self.transport.abort()
        else:
            self._watch_reader()

    def _refuse_trailers(self) -> None:
        if self.cycle.response_started:
            self.transport.abort()
        else:
            limit = self.config.settings.head_bytes_max
            self._refuse(431, f"The body's trailers or chunk extensions pass {limit:,} bytes.")

    def _refuse_head(self) -> None:
        limit = self.config.settings.head_bytes_max
        self._refuse(431, f"The request's head is larger than {limit:,} bytes.")

    def _refuse(self, status: int, why: str, fields: bytes = b"") -> None:
        if self.transport.is_closing():
            return
        phrase = {431: b"Request Header Fields Too Large", 503: b"Service Unavailable"}[status]
        body = why.encode()
        head = b"HTTP/1.1 %d %s\r\n%s%scontent-length: %d\r\n\r\n" % (
            status,
            phrase,
            _PLAIN,
            fields,
            len(body),
        )
        self.transport.write(head + body)
        self.transport.close()
        self._see_off()
