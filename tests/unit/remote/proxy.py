"""A proxy that a test can break: it cuts connections, loses answers or requests, takes nobody."""

from __future__ import annotations

import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

LINGER_NOT = struct.pack("ii", 1, 0)


class Listener(ABC):
    """Takes connections on a port of its own, and serves them on threads, until it is closed."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.start(self._accept)

    @abstractmethod
    def take(self, client: socket.socket) -> None:
        """Begin to serve a connection; called for one after the other."""

    @abstractmethod
    def cut(self) -> None:
        """End every connection."""

    def close(self) -> None:
        """End everything."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def start(self, work: Callable[..., None], *given: object) -> None:
        """Have something done on a thread that `close` waits for."""
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.take(client)


class Proxy(Listener):
    """Hands bytes on to a server, for as long as the test lets it."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.loses_answers = False
        self.loses_requests = False
        self.takes_nobody = False
        self.upgrades: bytes | None = None
        """The only upgrade that is let through; None: any."""
        self.hangs_up = False
        """Whether another upgrade ends the connection; else it is just not handed on."""
        self.budgets: Iterator[int] | None = None
        """Bytes that each new connection may carry before it is cut; then there is no limit."""
        self.lost = threading.Event()
        """Something was lost: the side that sent it waits in vain."""
        self.connections = 0
        self.carried_bytes = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        super().__init__()

    def cut(self) -> None:
        """Reset every connection."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for side in pair:
                _reset(side)

    def heal(self) -> None:
        """Lose nothing more."""
        self.loses_answers = self.loses_requests = self.takes_nobody = False
        self.lost.clear()

    def take(self, client: socket.socket) -> None:
        """Connect it to the server, and carry both ways."""
        self.connections += 1
        try:
            if self.takes_nobody:
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            _reset(client)
            return
        self._pairs.append((client, server))
        left = [next(self.budgets, 1 << 62) if self.budgets else 1 << 62]
        self.start(self._carry, client, server, "loses_requests", left)
        self.start(self._carry, server, client, "loses_answers", left)

    def _carry(
        self, source: socket.socket, sink: socket.socket, loses: str, left: list[int]
    ) -> None:
        try:
            while data := source.recv(65_536):
                if getattr(self, loses):
                    self.lost.set()
                    continue
                if self.upgrades is not None and b"HTTP/1.1" in data:
                    if self.hangs_up and b"Upgrade: " + self.upgrades not in data:
                        break
                    data = _without_upgrade(data, self.upgrades)
                self.carried_bytes += len(data)  # before somebody acts upon them
                sink.sendall(data[: left[0]])
                left[0] -= len(data)
                if left[0] <= 0:
                    break
        except OSError:
            pass  # it was cut
        _reset(source)
        _reset(sink)


def _without_upgrade(head: bytes, known: bytes) -> bytes:
    """A request or an answer as it is handed on by what knows one upgrade only."""
    lines = [line for line in head.split(b"\r\n") if b"pgrade: millstream" not in line]
    return head if b"pgrade: " + known in head else b"\r\n".join(lines)


def _reset(side: socket.socket) -> None:
    try:
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        side.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is gone already
    side.close()


@contextmanager
def proxied(port: int, budgets: Iterable[int] | None = None) -> Iterator[Proxy]:
    """A proxy in front of a server, while the block runs."""
    proxy = Proxy(port)
    proxy.budgets = None if budgets is None else iter(budgets)
    try:
        yield proxy
    finally:
        proxy.close()
