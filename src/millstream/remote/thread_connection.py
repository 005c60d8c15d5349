"""The connection of threads: a socket that the calling threads read and write.

The socket never blocks: a thread waits in `poll`, where an interrupt does no harm. Elsewhere an
interrupt may have lost bytes, so the connection is then given up.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from typing import Any

from millstream.clock import SystemClock
from millstream.errors import InvalidInput
from millstream.remote.address import Address
from millstream.remote.codec import Codec, ConnectionLost

READ_BYTES = 256 * 1024

_seconds = SystemClock().seconds


class NoTunnel(Exception):
    """The proxy of the environment cannot be used."""


class ThreadConnection:
    """A connection: a socket and a codec.

    One thread at a time may receive, and one may send, even concurrently.
    """

    def __init__(self, sock: socket.socket, codec: Codec, *, ping_s: float) -> None:
        self.ping_s = ping_s
        """The silence after which the server must be pinged."""
        self.is_pinged = False
        """Whether the server was pinged, and has sent nothing since."""
        self.replies = b""
        """Bytes that the codec itself must send, such as a pong."""
        self._socket = sock
        self._codec = codec
        self._came: list[bytes] = []
        self._guard = threading.Lock()
        """Guards the codec, and a TLS socket, which must not be read and written concurrently."""
        sock.setblocking(False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable.register(sock, select.POLLOUT)

    def first(self, until_s: float) -> bytes:
        """Request the upgrade, and return the server's first frame. Raises `TimeoutError`."""
        self._send(self._codec.request(), until_s)
        while not self._came:
            left_s = until_s - _seconds()
            if left_s <= 0 or not self.wait(left_s):
                raise TimeoutError
            self._came += self._read()
        return self._came.pop(0)

    def wait(self, timeout_s: float) -> bool:
        """Wait for bytes or the end; True if there is something to receive.

        Only here an interrupt of the thread does no harm.
        """
        if self._came or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return True
        return bool(self._readable.poll(timeout_s * 1000))

    def receive(self) -> list[bytes]:
        """Return the complete frames, perhaps none; after `wait`, without waiting.

        Raises `ConnectionLost`, or the errors of the codec.
        """
        self.is_pinged = False
        if self._came:
            frames, self._came = self._came, []
            return frames
        return self._read()

    def send(self, frame: bytes) -> None:
        """Send a frame. Raises `ConnectionLost` if the server accepts no bytes for too long."""
        with self._guard:
            data = self._codec.frame(frame)
        self._send(data, None)

    def reply(self) -> None:
        """Send `replies`."""
        data, self.replies = self.replies, b""
        self._send(data, None)

    def ping(self) -> None:
        """Send a ping."""
        self.is_pinged = True
        with self._guard:
            data = self._codec.ping()
        self._send(data, None)

    def say_goodbye(self) -> None:
        """Send the last frame, if the send buffer has space."""
        try:
            with self._guard:
                self._socket.send(self._codec.goodbye())
        except OSError:
            pass  # gone already, or full

    def cut(self) -> None:
        """End the connection, and wake threads that wait on it; from any thread."""
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass  # gone already

    def close(self) -> None:
        """Close the socket. From now on no thread may use the connection."""
        self._socket.close()

    def _read(self) -> list[bytes]:
        try:
            with self._guard:
                data = self._socket.recv(READ_BYTES)
                if data:
                    frames = self._codec.feed(data)
                    self.replies += self._codec.replies()
                    return frames
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return []  # an incomplete TLS record
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from error
        raise ConnectionLost("the other side hung up")

    def _send(self, data: bytes, until_s: float | None) -> None:
        view = memoryview(data)
        while view:
            try:
                with self._guard:
                    sent = self._socket.send(view)
                view = view[sent:]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._wait_writable(until_s)
            except OSError as error:
                raise ConnectionLost(error.strerror or str(error)) from error

    def _wait_writable(self, until_s: float | None) -> None:
        left_s = 2 * self.ping_s if until_s is None else max(0.0, until_s - _seconds())
        if not self._writable.poll(left_s * 1000):
            if until_s is not None:
                raise TimeoutError
            raise ConnectionLost("the other side takes nothing more")


def reach(address: Address, until_s: float) -> socket.socket:
    """Return a connected socket, through a proxy and TLS where needed. Raises `TimeoutError`."""
    tunnel = find_tunnel(address)
    if tunnel is None:
        sock = socket.create_connection((address.host, address.port), _left_s(until_s))
    else:
        try:
            sock = reach_tunnel(address, tunnel, _left_s(until_s))
        except NoTunnel as error:
            raise InvalidInput(str(error)) from error
    try:
        keep_alive(sock)
        if address.tls is None:
            return sock
        sock.settimeout(_left_s(until_s))
        return address.tls.wrap_socket(sock, server_hostname=address.host)
    except BaseException:
        sock.close()
        raise


def find_tunnel(address: Address) -> Any:
    """Return the proxy of the environment for an address, if any."""
    from urllib.request import getproxies

    if not getproxies():
        return None
    from websockets.proxy import get_proxy, parse_proxy
    from websockets.uri import parse_uri

    proxy = get_proxy(parse_uri(address.socket_url))
    return None if proxy is None else parse_proxy(proxy)


def reach_tunnel(address: Address, proxy: Any, timeout_s: float | None = None) -> socket.socket:
    """Return a socket that a proxy connects to the address."""
    from websockets.proxy import prepare_connect_request
    from websockets.uri import parse_uri

    if proxy.scheme != "http":
        raise NoTunnel(f"a proxy by {proxy.scheme} is not supported; http is")
    sock = socket.create_connection((proxy.host, proxy.port), timeout_s)
    try:
        sock.sendall(prepare_connect_request(proxy, parse_uri(address.socket_url)))
        head = b""
        while b"\r\n\r\n" not in head:
            data = sock.recv(1)  # not a byte more: the following bytes are not the proxy's
            if not data or len(head) > READ_BYTES:
                raise NoTunnel("the proxy does not answer")
            head += data
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise NoTunnel(f"the proxy refuses: {head[:60]!r}")
    except BaseException:
        sock.close()
        raise
    return sock


def keep_alive(sock: Any) -> None:
    """Send small frames at once, and let the kernel notice a dead server."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _left_s(until_s: float) -> float:
    left_s = until_s - _seconds()
    if left_s <= 0:
        raise TimeoutError
    return left_s
