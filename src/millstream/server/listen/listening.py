"""Listening: a socket on an address, and the server that takes connections from it until it stops.

When told to stop, it takes nothing new, ends all waits, lets requests finish, and cuts what is left.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import uvicorn

from millstream.errors import InvalidInput, MillstreamError
from millstream.server.core import Core
from millstream.server.listen.connection import Config, HttpConnection
from millstream.server.listen.framed import FramedConnection
from millstream.server.listen.handshake import Handshakes
from millstream.server.listen.websocket import SocketConnection
from millstream.server.settings import Settings

BACKLOG = 2048

GRACE = 0.7
"""The part of `stop_s` that requests get to finish; the rest is for closing the store."""

TURN_S = 0.01
"""How often a stopping server looks whether all connections have gone."""


class CannotListen(MillstreamError):
    """An address that cannot be listened on. Data: `host`, `port`."""


class OpenPort(uvicorn.Server):
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


def _cannot_listen(host: str, port: int, error: OSError) -> CannotListen:
    if error.errno == errno.EADDRINUSE:
        why = "something else listens there; stop it, or choose another port with --port"
    elif error.errno == errno.EACCES:
        why = "this user may not; choose a port above 1023 with --port"
    else:
        why = error.strerror or str(error)
    return CannotListen(f"cannot listen on {host}:{port}: {why}", host=host, port=port)
