"""Serving: a store behind one port, from the first connection to a clean stop.

The address is taken first, then the store is opened inside the loop that serves. When told to
stop, nothing new is taken, waiting requests end, commits finish, and the store is closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import BaseRoute, WebSocketRoute

from millstream.clock import Clock
from millstream.embedded import EmbeddedSession, open_file, open_over
from millstream.errors import Fenced, InvalidInput, MillstreamError, NoQuorum
from millstream.limits import Limits
from millstream.server.auth.register import Registrar
from millstream.server.cluster.pairing import Pairing
from millstream.server.cluster.seat import KEY_OF_THIS_MACHINE, ServedNode
from millstream.server.core import Core
from millstream.server.docs.endpoints import routes
from millstream.server.http.connection import Config, HttpConnection, SocketConnection
from millstream.server.http.framed import FramedConnection
from millstream.server.http.guard import Guard
from millstream.server.http.handshake import Handshakes
from millstream.server.pages import WebPages
from millstream.server.problems import nothing_here
from millstream.server.rest.hot import HotEndpoints
from millstream.server.rooms.events import enter_stream
from millstream.server.rooms.hub import Hub
from millstream.server.rooms.socket import PATH as ROOM_PATH
from millstream.server.rooms.socket import RoomSocket
from millstream.server.settings import Settings
from millstream.server.socket.socket import PATH, Socket
from millstream.store.engine import Durability, Engine
from millstream.store.store import Store
from millstream.threads.database import Millstream

_logger = logging.getLogger("millstream.server")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
BACKLOG = 2048

JOIN_S = 2.0
"""How often a node that finds no cluster says so, and looks whether it is to stop."""

GRACE = 0.7
"""The part of `stop_s` that requests get to finish; the rest is for closing the store."""

TURN_S = 0.01
"""How often a stopping server looks whether all connections have gone."""

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class CannotListen(MillstreamError):
    """An address that cannot be listened on. Data: `host`, `port`."""


class Serving:
    """One server. Everything but `stop` belongs to the thread that runs it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Settings | None = None,
        *,
        durability: Durability = "full",
        limits: Limits | None = None,
        clock: Clock | None = None,
        file_mode: int | None = None,
        make_engine: Callable[[], Engine] | None = None,
        make_node: Callable[[str], ServedNode] | None = None,
        cluster_key: str = "",
        cluster_ca: str = "",
        pairing: Pairing | None = None,
    ) -> None:
        """Take the address. `make_engine` opens another engine than the one at the path.

        `make_node` makes the server a node of a cluster: it gets the server's address, and the
        node is started and stopped here. `cluster_key` is what nodes show each other; on loopback
        without tokens none is needed. `cluster_ca` signs their certificates. `pairing` makes it a primary or a standby instead.
        """
        self.settings = settings or Settings()
        self.settings.check()
        self.core: Core | None = None
        self._path = path
        self._options: dict[str, Any] = {"limits": limits, "clock": clock, "file_mode": file_mode}
        self._durability: Durability = durability
        self._make_engine = make_engine
        self._pairing = pairing
        self._make_node = make_node if pairing is None else pairing.make_node
        self._cluster_key = cluster_key if pairing is None else pairing.key
        self._cluster_ca = cluster_ca if pairing is None else pairing.ca
        self.node: ServedNode | None = None
        """The node of the cluster that this server is, once it runs."""
        self._tls = tls_context(self.settings)
        self._socket = listen(self.settings.host, self.settings.port)
        self.port: int = self._socket.getsockname()[1]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._stop_asked = False
        self._failure: MillstreamError | None = None

    @property
    def url(self) -> str:
        """Where it is reached, without a slash at the end."""
        host = WILDCARDS.get(self.settings.host, self.settings.host)
        return (
            f"http{'s' if self._tls else ''}://{f'[{host}]' if ':' in host else host}:{self.port}"
        )

    @property
    def socket_url(self) -> str:
        """Where the streaming socket is."""
        return f"ws{self.url.removeprefix('http')}{PATH}"

    def run(
        self, *, on_ready: Callable[[], object] | None = None, with_signals: bool = False
    ) -> None:
        """Serve until told to stop, by `stop` or, in the main thread, by a signal.

        Raises `Poisoned` if it had to stop by itself, because something acknowledged is not on disk,
        and `Fenced` if another server has taken over its bucket.
        """
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(on_ready, with_signals))
        finally:
            self._socket.close()
            self._loop = self._stopping = self.core = None
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Tell the server to stop; from any thread, any number of times."""
        self._stop_asked = True
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._stop)
            except RuntimeError:
                pass  # the loop is closed: it has stopped

    def _stop(self) -> None:
        if self._stopping is not None:
            self._stopping.set()

    def give_up(self, reason: MillstreamError) -> None:
        """The store has ended: stop, so that a supervisor sees it; from any thread."""
        self._failure = reason
        event = "store_fenced" if isinstance(reason, Fenced) else "store_poisoned"
        _logger.error(event, extra={"error": type(reason).__name__})
        self.stop()

    async def _serve(self, on_ready: Callable[[], object] | None, with_signals: bool) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        if self._stop_asked:
            return
        if with_signals:
            for number in SIGNALS:
                loop.add_signal_handler(number, self._stop)
        try:
            if await self._join_cluster():
                await self._serve_store(on_ready)
        finally:
            if self._pairing is not None:
                await asyncio.to_thread(self._pairing.close)
            if self.node is not None:
                await asyncio.to_thread(self.node.stop)
            if with_signals:
                for number in SIGNALS:
                    loop.remove_signal_handler(number)

    async def _join_cluster(self) -> bool:
        """Start the node, if this server is one, and wait until there are rows; False if it stops."""
        if self._make_node is None:
            return True
        assert self._stopping is not None
        node = self.node = await asyncio.to_thread(self._make_node, self.url)
        node.start()
        while not self._stopping.is_set():
            try:
                await asyncio.to_thread(node.wait_readable, JOIN_S)
                return True
            except NoQuorum as error:
                _logger.warning("waiting_for_nodes", extra={"why": error.message})
        return False

    async def _serve_store(self, on_ready: Callable[[], object] | None) -> None:
        assert self._stopping is not None
        self.core = core = Core(self._open(), self.settings)
        core.store.on_poisoned = self.give_up
        name = self.settings.instance or f"{self.settings.host}:{self.port}"
        if (node := self.node) is not None:
            seat = core.sit(
                node,
                leads=lambda: not node.engine.read_only,
                key=self._node_key(),
                ca=self._cluster_ca,
            )
            core.pairing = self._pairing
            if self._pairing is not None:
                seat.primary = self._pairing.primary
            name = self.settings.instance or node.name
        hub = Hub(core, name)
        try:
            if self.settings.instance:
                await hub.attendance.take()  # else once a client enters a room
            server = _Server(self._config(core, hub), core, self._stopping, on_ready, self._tls)
            await server.serve(sockets=[self._socket])
        finally:
            await hub.close()
            await core.close()

    def _node_key(self) -> str:
        """What nodes show each other; where every client may do everything, they need no secret."""
        if self._cluster_key:
            return self._cluster_key
        if self.settings.needs_tokens():
            raise InvalidInput(
                "a node of a cluster that lets no client in without a token needs the cluster's "
                "secret: name its file with --cluster-secret-file"
            )
        return KEY_OF_THIS_MACHINE

    def _open(self) -> Store:
        store = self._open_store()
        try:
            self._check_tokens(store)
        except BaseException:
            store.close()
            raise
        return store

    def _open_store(self) -> Store:
        if (node := self.node) is not None:
            engine: Engine = node.engine
            return open_over(lambda: engine, limits=self._options["limits"], clock=node.clock)
        if self._make_engine is not None:
            limits, clock = self._options["limits"], self._options["clock"]
            return open_over(self._make_engine, limits=limits, clock=clock)
        return open_file(self._path, durability=self._durability, **self._options)

    def _check_tokens(self, store: Store) -> None:
        """A server that needs tokens must have one, else no client could use it.

        A node of a cluster may wait for its first token: the cluster's own key can make it.
        """
        if not self.settings.needs_tokens() or self.node is not None:
            return
        now_ms = store.clock.wall_ms()
        tokens = Registrar(Millstream(EmbeddedSession(store))).tokens()
        if all(one.has_expired(now_ms) for one in tokens):
            raise InvalidInput(
                f"a server at {self.settings.host} lets no client in without a token, and this store "
                "has none; `millstream token create` makes one, on 127.0.0.1 none is needed"
            )

    def _config(self, core: Core, hub: Hub) -> Config:
        return Config(
            make_app(core, hub),
            self.settings,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            ws_max_size=self.settings.frame_bytes_max,
            ws_per_message_deflate=False,
        )


class _Server(uvicorn.Server):
    """Uvicorn's server, with our way to stop."""

    def __init__(
        self,
        config: Config,
        core: Core,
        stopping: asyncio.Event,
        on_ready: Callable[[], object] | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(config)
        self._core = core
        self._stopping = stopping
        self._on_ready = on_ready
        self._tls = tls
        self._handshakes: Handshakes | None = None
        core.meter.connections.set_function(self._connections)

    def _connections(self) -> int:
        return len(self.server_state.connections) + len(self._handshakes or ())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen; with TLS we accept connections ourselves, so that handshakes count."""
        if self._tls is None or sockets is None:
            await super().startup(sockets=sockets)
            return
        (listener,) = sockets
        self._handshakes = Handshakes(
            listener,
            self._tls,
            make=lambda: HttpConnection(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            ),
            established=lambda: len(self.server_state.connections),
            connections_max=self._core.settings.connections_max,
        )
        self.servers = []
        self.started = True

    def capture_signals(self) -> Any:
        """Signals are ours."""
        return nullcontext()

    async def main_loop(self) -> None:
        """Until it is told to stop; once per second the date in answers moves on."""
        await self.on_tick(0)
        if self._on_ready is not None:
            self._on_ready()
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(1.0):
                    await self._stopping.wait()
            except TimeoutError:
                await self.on_tick(0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing new, end all waits, let requests finish, then cut what is left."""
        for server in self.servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.close()
        self._core.closing.set()
        for connection in list(self.server_state.connections):
            if not isinstance(connection, SocketConnection | FramedConnection):
                connection.shutdown()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._core.settings.stop_s * GRACE
        while self.server_state.tasks and loop.time() < deadline:
            await asyncio.sleep(TURN_S)
        for task in list(self.server_state.tasks):
            task.cancel()
        while self.server_state.connections and loop.time() < deadline:
            await asyncio.sleep(TURN_S)  # their last answers are on the way
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=TURN_S)


def make_app(core: Core, hub: Hub | None = None) -> Guard:
    """Everything that one port answers, behind the guard."""
    pages = WebPages(core.settings.origins)
    hub = hub or Hub(core, core.settings.instance or "here")
    core.room_events = partial(enter_stream, hub)
    (paths,) = routes(core)
    joined: list[BaseRoute] = [
        WebSocketRoute(PATH, Socket(core)),
        WebSocketRoute(ROOM_PATH, RoomSocket(hub)),
        paths,
        pages,
    ]
    guard = Guard(Starlette(routes=joined, exception_handlers={404: nothing_here}), core)
    guard.hot = HotEndpoints(core, guard, paths)
    return guard


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any free one."""
    try:
        flags = socket.AI_PASSIVE
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[
            0
        ]
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    listener.setblocking(False)
    return listener


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """What the certificate files say; None without them."""
    if not settings.certificate and not settings.key:
        return None
    if not settings.certificate or not settings.key:
        raise InvalidInput("TLS needs both a certificate and its key: --certificate and --key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except OSError as error:
        raise InvalidInput(
            f"no TLS with the certificate {settings.certificate} and the key {settings.key}: "
            f"{error.strerror or error}"
        ) from error
    return context


@contextmanager
def running(
    path: str | os.PathLike[str], settings: Settings | None = None, **options: Any
) -> Iterator[Serving]:
    """A server in a thread of its own, with its own loop, while the block runs.

    with running("orders.db", Settings(port=0)) as server:
        print(server.url)
    """
    serving = Serving(path, settings, **options)
    ready: Future[None] = Future()
    ended: list[BaseException] = []

    def serve() -> None:
        try:
            serving.run(on_ready=lambda: ready.set_result(None))
        except BaseException as error:
            ended.append(error)
        finally:
            if not ready.done():
                ready.set_result(None)

    thread = threading.Thread(target=serve, name="millstream-server")
    thread.start()
    try:
        ready.result()
        if not ended:
            yield serving
    finally:
        serving.stop()
        thread.join()
    if ended:
        raise ended[0]


def _cannot_listen(host: str, port: int, error: OSError) -> CannotListen:
    if error.errno == errno.EADDRINUSE:
        why = "something else listens there; stop it, or choose another port with --port"
    elif error.errno == errno.EACCES:
        why = "this user may not; choose a port above 1023 with --port"
    else:
        why = error.strerror or str(error)
    return CannotListen(f"cannot listen on {host}:{port}: {why}", host=host, port=port)
