"""Object storage on this machine: moto's S3 as a process, and a proxy that delays each request.

    with object_server() as address, DelayingProxy(address) as proxy:
        with variables(proxy.address):
            ms = millstream.open("s3://trial/store")
            proxy.delay_s = 0.08

The server needs `pip install 'moto[server]'`.
"""

from __future__ import annotations

import http.client
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

BUCKET = "trial"
START_S_MAX = 60.0

_SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from millstream.bench.objects import one_write_at_a_time

application = one_write_at_a_time(DomainDispatcherApplication(create_backend_app))
server = make_server("127.0.0.1", 0, application, threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""

WsgiApplication = Callable[[dict[str, Any], Any], Iterable[bytes]]


def one_write_at_a_time(application: WsgiApplication) -> WsgiApplication:
    """Return a moto server with serialized writes.

    Moto checks a condition and stores the object in two steps. Two concurrent requests could both
    succeed, and two writers could both believe that they hold the bucket.
    """
    turn = threading.Lock()

    def handle(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return application(environ, start_response)
        # Read a chunked body, which has no length, up to its last chunk.
        ends = environ.get("wsgi.input_terminated")
        size = -1 if ends else int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size))
        with turn:
            return list(application(environ, start_response))

    return handle


ObjectAnswer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers and body of an answer."""


@contextmanager
def object_server() -> Iterator[str]:
    """Run a new server with one bucket while the block runs; give its address."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            if not port:
                raise RuntimeError("moto's server did not start: pip install 'moto[server]'")
            address = f"http://127.0.0.1:{int(port)}"
            _create_bucket(address)
            yield address
        finally:
            process.kill()


@contextmanager
def variables(address: str) -> Iterator[dict[str, str]]:
    """Set the environment variables that lead to a server while the block runs."""
    variables = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "trial",
        "AWS_SECRET_ACCESS_KEY": "trial",
        "AWS_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield variables
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class DelayingProxy:
    """A proxy before an object server: it counts requests, and delays each one on demand."""

    def __init__(self, behind: str) -> None:
        self.delay_s = 0.0
        """How long each request is delayed."""
        self.requests = 0
        self._never = threading.Event()
        self._behind = urlsplit(behind).netloc
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        class _Request(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: Any) -> None:
                """Nothing is printed."""

            def handle_one_request(self) -> None:
                """A client may go away at any time."""
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

        verbs = ("GET", "HEAD", "PUT", "POST", "DELETE")
        handle = {f"do_{verb}": lambda request: self._handle(request) for verb in verbs}
        return type("_Forwarded", (_Request,), handle)

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        self.requests += 1
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if self.delay_s:
            self._never.wait(self.delay_s)
        answer = self.respond(request, body)
        if answer is None:
            request.close_connection = True
        else:
            _answer(request, *answer)

    def respond(self, request: BaseHTTPRequestHandler, body: bytes) -> ObjectAnswer | None:
        """Return the answer to send; None closes the connection without an answer."""
        return self.forward(request, body)

    def forward(self, request: BaseHTTPRequestHandler, body: bytes) -> ObjectAnswer:
        """Send a request to the server behind, and return its answer."""
        connection = http.client.HTTPConnection(self._behind, timeout=60)
        try:
            connection.request(
                request.command, request.path, body or None, self.forwarded_headers(request)
            )
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def forwarded_headers(self, request: BaseHTTPRequestHandler) -> dict[str, str]:
        """Return the headers that the server behind receives."""
        return dict(request.headers.items())


def _answer(
    request: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], body: bytes
) -> None:
    request.send_response_only(status)
    for name, value in headers:
        if name.lower() not in ("content-length", "transfer-encoding", "connection"):
            request.send_header(name, value)
    length = next((v for n, v in headers if n.lower() == "content-length"), str(len(body)))
    request.send_header("Content-Length", length if request.command == "HEAD" else str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def _create_bucket(address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=START_S_MAX)
    try:
        connection.request("PUT", f"/{BUCKET}")
        connection.getresponse().read()
    finally:
        connection.close()
