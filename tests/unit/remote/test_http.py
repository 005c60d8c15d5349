"""The HTTP client of threads: paths, tokens, refusals and broken connections."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from millstream.errors import Fenced, MillstreamError
from millstream.remote.address import Address, parse_address
from millstream.remote.http import BrokenHttp, HttpClient, ask


class Echo(BaseHTTPRequestHandler):
    """Answers with the request; `/refuse` refuses, `/hang-up` closes without an answer."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.path.endswith("/hang-up"):
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        request = {
            "path": self.path,
            "body": body.decode(),
            "token": self.headers.get("authorization"),
            "port": self.client_address[1],
        }
        status = 200
        if self.path.endswith("/refuse"):
            status, request = 409, {"title": "Fenced", "detail": "an older epoch"}
        if self.path.endswith("/odd"):
            status, request = 500, {"title": "os", "detail": ""}
        data = json.dumps(request).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[Address]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield parse_address(f"http://127.0.0.1:{server.server_port}/below", token="secret")
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_request_goes_below_the_path_of_the_address_and_shows_the_token(address: Address) -> None:
    answer = ask(address, "POST", "/logs", b"payload", timeout_s=10)
    request = json.loads(answer.body)
    assert answer.is_good
    assert request["path"] == "/below/logs"
    assert request["body"] == "payload"
    assert request["token"] == "Bearer secret"


def test_requests_of_one_connection_share_it(address: Address) -> None:
    with HttpClient(address, timeout_s=10) as connection:
        ports = {json.loads(connection.ask("GET", "/logs").body)["port"] for _ in range(3)}
    assert len(ports) == 1


def test_a_refusal_is_the_error_that_the_server_raised(address: Address) -> None:
    problem = ask(address, "POST", "/refuse", timeout_s=10).problem()
    assert isinstance(problem, Fenced)
    assert str(problem) == "an older epoch"


def test_a_title_that_is_no_error_of_ours_gives_a_plain_error(address: Address) -> None:
    problem = ask(address, "GET", "/odd", timeout_s=10).problem()
    assert type(problem) is MillstreamError
    assert str(problem) == "the server answered 500"


def test_a_connection_that_broke_is_opened_again_by_the_next_request(address: Address) -> None:
    with HttpClient(address, timeout_s=10) as connection:
        with pytest.raises(BrokenHttp) as broken:
            connection.ask("GET", "/hang-up")
        assert broken.value.was_sent
        assert connection.ask("GET", "/logs").is_good


def test_a_server_that_is_gone_was_sent_nothing() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    port = server.server_port
    server.server_close()
    with pytest.raises(BrokenHttp, match="ConnectionRefusedError") as broken:
        ask(parse_address(f"http://127.0.0.1:{port}"), "GET", "/logs", timeout_s=10)
    assert not broken.value.was_sent
