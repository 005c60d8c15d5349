"""The plug of threads: one connection on a socket, read and written by the threads that call.

The socket never blocks: a thread that waits does so in `poll`, where an interrupt does no harm. An
interrupt anywhere else may have lost bytes, so the connection is given up then.
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
from millstream.remote.codec import Codec, LineLost

READ_BYTES = 256 * 1024

_seconds = SystemClock().seconds


class NoTunnel(Exception):
    """The proxy that the environment names cannot be used."""


class Plug:
    """One connection: its socket, and the codec that is spoken over it.

    One thread at a time may receive, and one may send; both may do so at once.
    """

    def __init__(self, sock: socket.socket, codec: Codec, *, ping_s: float) -> None:
        self.ping_s = ping_s
        """After so long without a word the server is to be asked whether it is there."""
        self.is_asked = False
        """Whether the server was asked whether it is there, and has said nothing since."""
        self.replies = b""
        """What the server has to be told by itself, such as a pong."""
        self._socket = sock
        self._codec = codec
        self._came: list[bytes] = []
        self._guard = threading.Lock()
        """Of the codec, and of a TLS socket, which may not be read and written at once."""
        sock.setblocking(False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable.register(sock, select.POLLOUT)

    def first(self, until_s: float) -> bytes:
        """Ask for the upgrade; the server's first frame. `TimeoutError` if it does not come."""
        self._send(self._codec.request(), until_s)
        while not self._came:
            left_s = until_s - _seconds()
            if left_s <= 0 or not self.wait(left_s):
                raise TimeoutError
            self._came += self._read()
        return self._came.pop(0)

    def wait(self, timeout_s: float) -> bool:
        """Wait until something came that was not received yet: frames, or the end.

        Only here an interrupt of the thread does no harm.
        """
        if self._came or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return True
        return bool(self._readable.poll(timeout_s * 1000))

    def receive(self) -> list[bytes]:
        """The frames that came and are whole, perhaps none; after `wait`, without waiting.

        Raises `LineLost`, or what the codec raises.
        """
        self.is_asked = False
        if self._came:
            found, self._came = self._came, []
            return found
        return self._read()

    def send(self, frame: bytes) -> None:
        """Send a frame; `LineLost` if the other side takes nothing for too long."""
        with self._guard:
            data = self._codec.frame(frame)
        self._send(data, None)

    def reply(self) -> None:
        """Send `replies`."""
        data, self.replies = self.replies, b""
        self._send(data, None)

    def ping(self) -> None:
        """Ask whether the server is there."""
        self.is_asked = True
        with self._guard:
            data = self._codec.ping()
        self._send(data, None)

    def say_goodbye(self) -> None:
        """Send the last frame, if there is room for it."""
        try:
            with self._guard:
                self._socket.send(self._codec.goodbye())
        except OSError:
            pass  # it is gone already, or full

    def cut(self) -> None:
        """End the connection: threads that wait on it are woken; from any thread."""
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass  # it is gone already

    def close(self) -> None:
        """Give the socket back; no other thread may use it any more."""
        self._socket.close()

    def _read(self) -> list[bytes]:
        try:
            with self._guard:
                data = self._socket.recv(READ_BYTES)
                if data:
                    found = self._codec.feed(data)
                    self.replies += self._codec.replies()
                    return found
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return []  # a part of a TLS record
        except OSError as error:
            raise LineLost(error.strerror or str(error)) from error
        raise LineLost("the other side hung up")

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
                raise LineLost(error.strerror or str(error)) from error

    def _wait_writable(self, until_s: float | None) -> None:
        left_s = 2 * self.ping_s if until_s is None else max(0.0, until_s - _seconds())
        if not self._writable.poll(left_s * 1000):
            if until_s is not None:
                raise TimeoutError
            raise LineLost("the other side takes nothing more")


def reach(address: Address, until_s: float) -> socket.socket:
    """A connected socket, through a proxy and TLS if there are such; TimeoutError if it is late."""
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
    """The proxy that the environment names for an address, if any."""
    from urllib.request import getproxies

    if not getproxies():
        return None
    from websockets.proxy import get_proxy, parse_proxy
    from websockets.uri import parse_uri

    found = get_proxy(parse_uri(address.socket_url))
    return None if found is None else parse_proxy(found)


def reach_tunnel(address: Address, proxy: Any, timeout_s: float | None = None) -> socket.socket:
    """A connected socket, by a proxy that is asked to hand everything on."""
    from websockets.proxy import prepare_connect_request
    from websockets.uri import parse_uri

    if proxy.scheme != "http":
        raise NoTunnel(f"a proxy by {proxy.scheme} is not supported; http is")
    sock = socket.create_connection((proxy.host, proxy.port), timeout_s)
    try:
        sock.sendall(prepare_connect_request(proxy, parse_uri(address.socket_url)))
        head = b""
        while b"\r\n\r\n" not in head:
            data = sock.recv(1)  # no byte more: what follows is not the proxy's
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
    """Send small frames at once, and have the kernel notice a server that is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _left_s(until_s: float) -> float:
    left_s = until_s - _seconds()
    if left_s <= 0:
        raise TimeoutError
    return left_s
