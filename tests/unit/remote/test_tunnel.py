"""Clients that reach a server through an HTTP proxy, which is asked to hand everything on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import millstream
from millstream import Producer, aio
from millstream.errors import CannotOpen, MillstreamError
from millstream.server.serving import Serving
from tests.unit.remote.proxy import Listener

SOON_S = 30.0
GRANTED = b"HTTP/1.1 200 Connection established\r\nProxy-Agent: test\r\n\r\n"


class Tunnel(Listener):
    """A proxy that knows CONNECT, and answers it as it is told."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[bytes] = []
        """The requests that came, up to their empty line."""
        self._open: list[socket.socket] = []
        super().__init__()

    def cut(self) -> None:
        """End every connection."""
        for one in self._open:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is gone already
            one.close()
        self._open.clear()

    def take(self, client: socket.socket) -> None:
        """Answer it on a thread of its own."""
        self._open.append(client)
        self.start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = client.recv(1)
            if not data:
                return
            head += data
        self.asked.append(head)
        client.sendall(self.answer)
        if self.answer != GRANTED:
            client.close()
            return
        host, _, port = head.split(b" ")[1].decode().rpartition(":")
        server = socket.create_connection((host, int(port)), SOON_S)
        self._open.append(server)
        self.start(_carry, server, client)
        _carry(client, server)


def _carry(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it was cut


@contextmanager
def tunnel(patch: pytest.MonkeyPatch, answer: bytes = GRANTED, user: str = "") -> Iterator[Tunnel]:
    """A proxy that the environment names."""
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"):
        patch.delenv(name, raising=False)
    made = Tunnel(answer)
    patch.setenv("http_proxy", made.url.replace("://", f"://{user}"))
    try:
        yield made
    finally:
        made.close()


async def test_both_surfaces_go_through_a_proxy(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tunnel(monkeypatch) as proxy:
        with millstream.open(server.url) as ms:
            log = ms.log("a")
            assert log.append(b"x" * 200_000) == 0
            proxy.cut()
            assert log.append(b"y", producer=Producer("p", 0)) == 1
            assert [len(record.value) for record in log.read()] == [200_000, 1]
        async with await aio.open(server.url) as twin:
            assert await twin.log("a").append(b"z") == 2
            proxy.cut()
            assert await twin.log("a").end_offset() == 3
        where = f"CONNECT 127.0.0.1:{server.port} HTTP/1.1".encode()
        assert len(proxy.asked) == 4
        assert all(head.startswith(where) for head in proxy.asked)


def test_a_proxy_is_told_who_asks(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        tunnel(monkeypatch, user="ada:secret@") as proxy,
        millstream.open(server.url) as ms,
    ):
        assert ms.log("a").append(b"x") == 0
        (head,) = proxy.asked
        assert b"Proxy-Authorization: Basic YWRhOnNlY3JldA==" in head


def test_a_server_that_needs_no_proxy_is_reached_without_one(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tunnel(monkeypatch) as proxy:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with millstream.open(server.url) as ms:
            assert ms.log("a").append(b"x") == 0
        assert proxy.asked == []


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "403"),
        (b"HTTP/1.1 20", "does not answer"),
        (b"", "does not answer"),
        (b"nonsense\r\n\r\n", "refuses"),
    ],
)
async def test_a_proxy_that_does_not_hand_on_is_named(
    server: Serving, monkeypatch: pytest.MonkeyPatch, answer: bytes, told: str
) -> None:
    with tunnel(monkeypatch, answer):
        with pytest.raises(MillstreamError, match=told) as raised, millstream.open(server.url):
            pass
        assert "proxy" in str(raised.value)
        with pytest.raises(MillstreamError, match=told) as raised:
            await aio.open(server.url)
        assert "proxy" in str(raised.value)


async def test_a_proxy_that_is_not_there_is_as_a_server_that_is_not(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tunnel(monkeypatch):
        pass
    with pytest.raises(CannotOpen), millstream.open(server.url):
        pass
    with pytest.raises(CannotOpen):
        await aio.open(server.url)
