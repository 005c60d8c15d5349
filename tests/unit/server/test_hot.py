"""Hot requests over a real connection: the same answers as through the framework, in their order."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millstream
from millstream.server.auth.tokens import create_token
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.server.asking import EACH_WAY, HotTransport, Rest, each_way, served

SOON_S = 60.0
JSON = "application/json"

way = EACH_WAY(each_way)

Answer = tuple[bytes, dict[bytes, bytes], bytes]
"""A status line, headers, and a body."""


class Client:
    """One connection, byte by byte."""

    def __init__(self, raw: socket.socket, port: int) -> None:
        self._raw = raw
        self._port = port
        self._rest = b""

    def request(
        self, path: str, body: bytes, *, kind: str = "text/plain", more: str = "", host: str = ""
    ) -> bytes:
        """A request, as it is sent."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host or f'127.0.0.1:{self._port}'}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        )
        return head.encode() + body

    def send(self, data: bytes) -> None:
        """Send bytes in one piece."""
        self._raw.sendall(data)

    def send_apart(self, request: bytes, *, at: int) -> None:
        """Send a request in two pieces, the second once the server has read the first."""
        self.send(request[:at])
        with socket.create_connection(("127.0.0.1", self._port), SOON_S) as other:
            other.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert other.recv(1)  # the loop has had its turn
        self.send(request[at:])

    def answer(self) -> Answer:
        """The next answer."""
        while b"\r\n\r\n" not in self._rest:
            self._rest += self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines)
        length = int(headers[b"content-length"])
        while len(self._rest) < length:
            self._rest += self._more()
        body, self._rest = self._rest[:length], self._rest[length:]
        return status, headers, body

    def is_over(self) -> bool:
        """Whether the server has hung up."""
        return not self._raw.recv(1)

    def _more(self) -> bytes:
        data = self._raw.recv(65536)
        assert data, "the server hung up"
        return data


@contextmanager
def connected(server: Serving) -> Iterator[Client]:
    with socket.create_connection(("127.0.0.1", server.port), SOON_S) as raw:
        yield Client(raw, server.port)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with running(tmp_path / "a.db", Settings(port=0)) as server:
        yield server


def claim_of(answer: Answer) -> str:
    """The claim of the one message of an answer."""
    (message,) = json.loads(answer[2])["messages"]
    found: str = message["claim"]
    return found


@served
async def test_only_what_is_hot_goes_past_the_framework(rest: Rest) -> None:
    for _ in range(2):
        assert (await rest.post("/logs/a/records", content=b"x")).status_code == 201
    assert (await rest.post("/logs/a/records?expect_end=2", content=b"x")).status_code == 201
    assert (await rest.get("/logs/a/records")).status_code == 200
    await rest.put("/queues/q", json={})
    assert (await rest.post("/queues/q/messages", content=b"x")).status_code == 201
    found = (await rest.post("/queues/q/claims", json={"wait": 5})).json()["messages"]
    claims = {"claims": [found[0]["claim"]]}
    assert (await rest.post("/queues/q/ack", json=claims)).status_code == 200
    assert (await rest.post("/queues/q/nack", json=claims)).status_code == 409
    if isinstance(rest.asked_by, HotTransport):
        assert rest.asked_by.taken == 4  # two appends, a put, an ack


def test_a_request_in_pieces_is_answered_as_one_that_came_whole(server: Serving) -> None:
    with connected(server) as client, millstream.open(server.url) as ms:
        ms.create_queue("q")
        alike = []
        for is_whole in (True, False):
            found = []
            for path, kind, body in (
                ("/logs/a/records", "text/plain", b"x"),
                ("/logs/a%00/records", "text/plain", b"x"),
                ("/logs/a/records", JSON, b"{"),
                ("/logs/a/records", JSON, b'{"value": 1, "strange": 2}'),
                ("/queues/none/messages", "text/plain", b"x"),
                ("/queues/q/messages", JSON, b'{"value": 1}'),
                ("/queues/none/claims", JSON, b"{}"),
                ("/queues/q/ack", JSON, b'{"claims": "1:1"}'),
                ("/queues/q/ack", "text/plain", b'{"claims": "1:1"}'),
                ("/nothing/records", JSON, b"{}"),
            ):
                request = client.request(path, body, kind=kind)
                if is_whole:
                    client.send(request)
                else:
                    client.send_apart(request, at=len(request) - len(body))
                status, headers, text = client.answer()
                assert headers.pop(b"x-request-id")
                assert headers.pop(b"date")
                shown = {k: v for k, v in json.loads(text).items() if k not in ("offset", "id")}
                found.append((status, headers.keys(), headers[b"content-type"], shown))
            alike.append(found)
        assert alike[0] == alike[1]
        assert alike[0][0][0] == b"HTTP/1.1 201 Created"


def test_requests_that_came_together_are_answered_in_their_order(server: Serving) -> None:
    with connected(server) as client:
        appends = [client.request("/logs/a/records", b"%d" % number) for number in range(20)]
        health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.send(b"".join([*appends[:10], health, *appends[10:]]))
        found = [json.loads(client.answer()[2]) for _ in range(21)]
        assert "status" in found.pop(10)
        assert [one["offset"] for one in found] == list(range(20))


def test_messages_are_put_claimed_and_acknowledged(server: Serving) -> None:
    with connected(server) as client, millstream.open(server.url) as ms:
        queue = ms.create_queue("q", lease=60)
        for number in range(40):
            client.send(client.request("/queues/q/messages", b"%d" % number))
            assert client.answer()[0] == b"HTTP/1.1 201 Created"
            client.send(client.request("/queues/q/claims", b"", kind=JSON))
            claims = json.dumps({"claims": claim_of(client.answer())}).encode()
            for _ in range(2):  # a repeat is a success
                client.send(client.request("/queues/q/ack", claims, kind=JSON))
                assert json.loads(client.answer()[2]) == {"count": 1, "lost": []}
        assert (queue.info().done, queue.info().in_flight) == (40, 0)


def test_an_answer_says_that_the_connection_ends(server: Serving) -> None:
    with connected(server) as client:
        client.send(client.request("/logs/a/records", b"x", more="Connection: close\r\n"))
        status, headers, _ = client.answer()
        assert (status, headers[b"connection"]) == (b"HTTP/1.1 201 Created", b"close")
        assert client.is_over()


def test_the_guard_refuses_hot_requests_too(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        _, text = create_token(ms, "writer", ["log:write:mine"])
    settings = Settings(port=0, auth="on", requests_per_second=4)
    with running(tmp_path / "a.db", settings) as server, connected(server) as client:

        def ask(path: str, more: str, host: str = "") -> int:
            client.send(client.request(path, b"x", more=more, host=host))
            return int(client.answer()[0].split()[1])

        bearer = f"Authorization: Bearer {text}\r\n"
        assert ask("/logs/mine/records", "") == 401
        assert ask("/logs/mine/records", f"Authorization: Bearer {text}x\r\n") == 401
        assert ask("/logs/mine/records", bearer + bearer) == 401
        assert ask("/logs/mine/records", bearer, host="elsewhere.example") == 403
        assert ask("/logs/mine/records", bearer + "Origin: http://elsewhere.example\r\n") == 403
        assert ask("/logs/mine/records", bearer + "Sec-Fetch-Site: cross-site\r\n") == 403
        assert ask("/logs/mine/records", bearer) == 201
        assert ask("/logs/other/records", bearer) == 403
        found = {ask("/logs/mine/records", bearer) for _ in range(10)}
        assert found == {201, 429}
        assert server.core is not None
        assert not server.core.quota.connections
        assert not server.core.quota.requests


def test_hot_requests_are_counted(server: Serving) -> None:
    with connected(server) as client:
        for _ in range(3):
            client.send(client.request("/logs/a/records", b"x" * 100))
            client.answer()
        assert server.core is not None
        meter = server.core.meter
        assert meter.requests.counts == {201: 3}
        assert meter.received_bytes.count == 300
        assert meter.sent_bytes.count == 3 * len(b'{"offset":0,"count":1}')
