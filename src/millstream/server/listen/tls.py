"""TLS of a server's ports: the context of the certificate, and handshakes within a time limit.

A connection counts from the moment when it is accepted, not only once both sides have agreed on
keys. Then the protocol of the port takes the connection over.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from millstream.errors import InvalidInput
from millstream.server.listen.connections import REFUSED_MAX, Connections
from millstream.server.settings import Settings

HANDSHAKE_S = 10.0
"""How long a client and the server may take to agree on keys."""

RETRY_S = 0.1
"""How long accepting rests when the process has no file descriptors left."""


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the certificate files; None without TLS."""
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


class Handshakes:
    """Accepts connections of a listener, and runs their handshakes. Lives in one event loop."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        *,
        make: Callable[[], asyncio.Protocol],
        connections: Connections,
    ) -> None:
        self._listener = listener
        self._context = context
        self._make = make
        self._connections = connections
        self._open: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept nothing more, and cut what has not agreed on keys: it has asked for nothing."""
        for task in (self._accepting, *self._open):
            task.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(RETRY_S)
                continue
            # Past the bound a few still come to TLS, and get a refusal.
            if len(self._connections) >= self._connections.connections_max + REFUSED_MAX:
                accepted.close()
                continue
            task = loop.create_task(self._agree(accepted))
            for handshakes in (self._open, self._connections.handshakes):
                handshakes.add(task)
                task.add_done_callback(handshakes.discard)

    async def _agree(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except OSError:
            accepted.close()  # no TLS, too slow, or gone: there is no client to tell
        except asyncio.CancelledError:
            accepted.close()
            raise
