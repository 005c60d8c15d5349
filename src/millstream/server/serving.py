"""Serving: a store behind its ports, from the first connection to a clean stop.

The server takes its ports first, then opens the store inside the event loop. A server that is told to
stop accepts nothing new, ends waiting requests, finishes commits, and closes the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import uvloop

from millstream.clock import Clock
from millstream.embedded.session import EmbeddedSession, open_file, open_over
from millstream.engine.protocol import Durability, Engine
from millstream.errors import Fenced, InvalidInput, MillstreamError, NoQuorum
from millstream.limits import Limits
from millstream.record import to_ms
from millstream.server.app import make_app
from millstream.server.auth.register import Registrar
from millstream.server.cluster.pair import Pairing
from millstream.server.cluster.role import KEY_OF_THIS_MACHINE, ClusterRole, ServedNode
from millstream.server.core import Core
from millstream.server.gateways.client import GatewayEntrance
from millstream.server.gateways.connection import Gateway
from millstream.server.listen.connection import Config, HttpConnection
from millstream.server.listen.connections import Connections
from millstream.server.listen.ports import (
    BACKLOG,
    PortListener,
    listen,
    serve_ports,
)
from millstream.server.listen.tls import tls_context
from millstream.server.processes.place import ProcessPlace
from millstream.server.processes.siblings import Siblings
from millstream.server.rooms.hub import Hub
from millstream.server.settings import Settings
from millstream.server.socket.socket import PATH
from millstream.store.store import Store
from millstream.threads.database import Millstream

_logger = logging.getLogger("millstream.server")

SIGNALS = (signal.SIGTERM, signal.SIGINT)

JOIN_S = 2.0
"""How often a node without a cluster logs a warning, and looks whether it must stop."""

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Serving:
    """One server. All methods but `stop` belong to the thread that runs the server."""

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
        gateways: Sequence[Gateway] = (),
        place: ProcessPlace | None = None,
        listening: socket.socket | None = None,
    ) -> None:
        """Take the address. `make_engine` opens another engine than the one at the path.

        `make_node` makes the server a node of a cluster: the function gets the server's address,
        and the server starts and stops the node. Nodes authenticate each other by `cluster_key`;
        on loopback without tokens no key is needed. `cluster_ca` signs the certificates of nodes.
        `pairing` makes the server a primary or a standby instead.
        `gateways` are foreign protocols, each on a port of its own.
        `place` makes the server one process of a group that shares a port.
        `listening` is the port, opened by a service manager; the settings name its address.
        """
        self.settings = settings or Settings()
        self.settings.check()
        self.core: Core | None = None
        self._path = path
        sweep_ms = to_ms(self.settings.rooms_sweep_s)
        limits = limits or Limits()
        age_ms = to_ms(self.settings.logs_retention_s) or limits.log_age_ms
        self._limits = replace(limits, room_sweep_ms=sweep_ms, log_age_ms=age_ms)
        self._options: dict[str, Any] = {"clock": clock, "file_mode": file_mode}
        self._durability: Durability = durability
        self._make_engine = make_engine
        self._pairing = pairing
        self._make_node = make_node if pairing is None else pairing.make_node
        self._cluster_key = cluster_key if pairing is None else pairing.key
        self._cluster_ca = cluster_ca if pairing is None else pairing.ca
        self.node: ServedNode | None = None
        """The server's node of a cluster, once the server runs."""
        self._tls = tls_context(self.settings)
        self._place = place
        self._socket = listening or _listen(self.settings, place)
        self.port: int = self._socket.getsockname()[1]
        self._gateways = gateways
        self._gateway_sockets = self._listen_for_gateways()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._stop_asked = False
        self._failure: MillstreamError | None = None

    def _listen_for_gateways(self) -> list[socket.socket]:
        """Take the ports of all gateways, or none of the server's ports."""
        taken = [self._socket]
        try:
            for gateway in self._gateways:
                taken.append(listen(self.settings.host, gateway.port))
        except BaseException:
            for listening in taken:
                listening.close()
            raise
        return taken[1:]

    @property
    def gateway_ports(self) -> dict[str, int]:
        """The port of each gateway, by the gateway's name."""
        ports = [listening.getsockname()[1] for listening in self._gateway_sockets]
        return {gateway.name: port for gateway, port in zip(self._gateways, ports, strict=True)}

    @property
    def url(self) -> str:
        """The address for clients, without a slash at the end."""
        return url_of(self.settings.host, self.port, is_tls=self._tls is not None)

    @property
    def socket_url(self) -> str:
        """The address of the streaming socket."""
        return f"ws{self.url.removeprefix('http')}{PATH}"

    def run(
        self, *, on_ready: Callable[[], object] | None = None, with_signals: bool = False
    ) -> None:
        """Serve until told to stop, by `stop` or, in the main thread, by a signal.

        Raises `Poisoned` if the server had to stop because acknowledged records are not on disk,
        and `Fenced` if another server has taken over the bucket.
        """
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(on_ready, with_signals))
        finally:
            for listening in (self._socket, *self._gateway_sockets):
                listening.close()
            self._loop = self._stopping = self.core = None
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Tell the server to stop. Any thread may call this, more than once."""
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
        """Stop because the store has ended, so that a supervisor starts the server again.

        Threads may call `give_up` at any time.
        """
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
        if self._place is not None:  # nothing comes through this socket but its end
            loop.add_reader(self._place.group_fd, self._stop)
        try:
            if await self._join_cluster():
                await self._serve_store(on_ready)
        finally:
            if self._pairing is not None:
                await asyncio.to_thread(self._pairing.close)
            if self.node is not None:
                await asyncio.to_thread(self.node.stop)
            if self._place is not None:
                loop.remove_reader(self._place.group_fd)
            if with_signals:
                for number in SIGNALS:
                    loop.remove_signal_handler(number)

    async def _join_cluster(self) -> bool:
        """Start the node of a cluster and wait for its rows; False if the server is told to stop."""
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
        store, seat = self._open(), self._seat()
        siblings = None if self._place is None else Siblings(self._place, store.clock)
        self.core = core = Core(
            store, self.settings, seat=seat, pairing=self._pairing, siblings=siblings
        )
        core.store.listeners.add(poison=self.give_up)
        hub = Hub(core, self._instance())
        try:
            core.store.start_keeper()  # presence of other servers' users is settled here as well
            if self.settings.instance:
                await hub.attendance.take()  # else once a client enters a room
            else:
                hub.attendance.reclaim()
            connections = Connections(self.settings.connections_max)
            listeners = self._listeners(core, hub, connections)
            await serve_ports(listeners, connections, core, self._stopping, on_ready)
        finally:
            if self.node is not None:
                self.node.hurry()
            await hub.close()
            await core.close()

    def _listeners(self, core: Core, hub: Hub, connections: Connections) -> list[PortListener]:
        """Return the port of HTTP, and those of the gateways."""
        config = self._config(core, hub)
        http = partial(HttpConnection, config, connections)
        listeners = [PortListener(self._socket, http, connections, tls=self._tls)]
        if core.siblings is not None:
            beside = listen("127.0.0.1", 0)
            core.siblings.serve_at(beside.getsockname()[1])
            listeners.append(PortListener(beside, http, connections, tls=None))
        for gateway, listening in zip(self._gateways, self._gateway_sockets, strict=True):
            entrance = GatewayEntrance(core, connections, gateway.credentials)
            connect = partial(gateway.connect, entrance)
            listeners.append(PortListener(listening, connect, connections, tls=self._tls))
        return listeners

    def _instance(self) -> str:
        """Return the name of this server among the servers of its store."""
        here = f"{self.settings.host}:{self.port}" if self.node is None else self.node.name
        name = self.settings.instance or here
        return name if self._place is None else f"{name}-{self._place.number}"

    def _seat(self) -> ClusterRole | None:
        """Return the role of this server in its cluster; None on a single server."""
        if (node := self.node) is None:
            return None
        return ClusterRole(
            node,
            leads=lambda: not node.engine.read_only,
            key=self._node_key(),
            ca=self._cluster_ca,
            primary="" if self._pairing is None else self._pairing.primary,
        )

    def _node_key(self) -> str:
        """Return the secret of the cluster; without tokens on loopback a fixed word is enough."""
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
            is_first = self._place is None or self._place.number == 1  # one process is enough
            store.scrub_from_now(self.settings.scrub_share if is_first else 0)
        except BaseException:
            store.close()
            raise
        return store

    def _open_store(self) -> Store:
        if (node := self.node) is not None:
            engine: Engine = node.engine
            return open_over(lambda: engine, limits=self._limits, clock=node.clock)
        if self._make_engine is not None:
            clock = self._options["clock"]
            return open_over(self._make_engine, limits=self._limits, clock=clock)
        return open_file(
            self._path, durability=self._durability, limits=self._limits, **self._options
        )

    def _check_tokens(self, store: Store) -> None:
        """Refuse to serve a store without tokens where clients need tokens.

        A node of a cluster may start without: the key of the cluster can create the first token.
        """
        if not self.settings.needs_tokens() or self.node is not None:
            return
        now_ms = store.clock.wall_ms()
        tokens = Registrar(Millstream(EmbeddedSession(store))).tokens()
        if all(token.has_expired(now_ms) for token in tokens):
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


def url_of(host: str, port: int, *, is_tls: bool) -> str:
    """Return the address of a server for clients, without a slash at the end."""
    host = WILDCARDS.get(host, host)
    return f"http{'s' if is_tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


def _listen(settings: Settings, place: ProcessPlace | None) -> socket.socket:
    """Return the listening socket: of the group, or a new one."""
    return listen(settings.host, settings.port) if place is None else place.listening()


@contextmanager
def running(
    path: str | os.PathLike[str], settings: Settings | None = None, **options: Any
) -> Iterator[Serving]:
    """Run a server in its own thread, with its own event loop, while the block runs.

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
