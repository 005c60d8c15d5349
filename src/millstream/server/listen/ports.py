"""Listening: the ports of a server, from the first connection to the end of the last one.

A server that is told to stop accepts nothing new, ends all waits, lets requests finish, and cuts the
connections that are left.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from email.utils import formatdate

from millstream.errors import MillstreamError
from millstream.server.core import Core
from millstream.server.listen.connections import Connections
from millstream.server.listen.tls import Handshakes

BACKLOG = 2048

GRACE = 0.7
"""The part of `stop_s` that requests get to finish; the rest is for closing the store."""


DRAIN_S = 0.5
"""How long a process of a group goes on answering, so that its clients leave without an error."""


class CannotListen(MillstreamError):
    """An address that cannot be listened on. Data: `host`, `port`."""


class PortListener:
    """One port: accepts connections and hands each to the protocol of the port."""

    def __init__(
        self,
        listening: socket.socket,
        connect: Callable[[], asyncio.Protocol],
        connections: Connections,
        *,
        tls: ssl.SSLContext | None,
    ) -> None:
        """`connect` makes the protocol object of one connection, which enters `connections`."""
        self._listening = listening
        self._connect = connect
        self._connections = connections
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._handshakes: Handshakes | None = None

    async def open(self) -> None:
        """Begin to accept; with TLS we accept connections ourselves, so that handshakes count."""
        if self._tls is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                self._connect, sock=self._listening, backlog=BACKLOG
            )
        else:
            self._handshakes = Handshakes(
                self._listening, self._tls, make=self._connect, connections=self._connections
            )

    def close(self) -> None:
        """Accept nothing more; connections that are open stay."""
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            self._handshakes.close()


async def serve_ports(
    listeners: Sequence[PortListener],
    connections: Connections,
    core: Core,
    stopping: asyncio.Event,
    on_ready: Callable[[], object] | None,
) -> None:
    """Serve all ports of a server until it is told to stop, then end all connections in order."""
    core.meter.connections.set_function(lambda: len(connections))
    _tick(connections, core)
    try:
        for listener in listeners:
            await listener.open()
        _tick(connections, core)
        if on_ready is not None:
            on_ready()
        while not stopping.is_set():
            try:
                async with asyncio.timeout(1.0):
                    await stopping.wait()
            except TimeoutError:
                _tick(connections, core)
    finally:
        for listener in listeners:
            listener.close()
        if core.siblings is not None:  # the clients go on with another process
            await connections.drain(DRAIN_S)
        core.closing.set()
        await connections.end(core.settings.stop_s * GRACE)


def _tick(connections: Connections, core: Core) -> None:
    """Move the date in HTTP responses on, and write the figures that other processes read."""
    date = formatdate(core.store.clock.wall_ms() / 1000, usegmt=True)
    connections.default_headers = [(b"date", date.encode())]
    if core.siblings is not None:
        core.siblings.write(len(connections), [count for _, count in core.meter.commit_counts()])


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 means any free port."""
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


def _cannot_listen(host: str, port: int, error: OSError) -> CannotListen:
    if error.errno == errno.EADDRINUSE:
        why = "something else listens there; stop it, or choose another port with --port"
    elif error.errno == errno.EACCES:
        why = "this user may not; choose a port above 1023 with --port"
    else:
        why = error.strerror or str(error)
    return CannotListen(f"cannot listen on {host}:{port}: {why}", host=host, port=port)
