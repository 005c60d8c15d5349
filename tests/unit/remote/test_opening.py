"""Opening an address: who may, what answers there, and which options make sense."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.server import serve

import millstream
from millstream import Limits, aio
from millstream.errors import CannotOpen, InvalidInput, MillstreamError, OutcomeUnknown
from millstream.remote import opening
from millstream.remote.address import Address, parse_address
from millstream.server.auth.tokens import create_token
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock
from millstream.wire import commands as wire

SECRET = "ms_do-not-show-this"


class Canned:
    """A server that answers everybody the same, and notes what it was sent."""

    def __init__(self, answer: bytes) -> None:
        self.heard = b""
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                while b"\r\n\r\n" not in self.heard and (data := connection.recv(65_536)):
                    self.heard += data
                connection.sendall(self._answer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextmanager
def canned(answer: bytes) -> Iterator[Canned]:
    server = Canned(answer)
    try:
        yield server
    finally:
        server.close()


def status(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {line}", "Content-Length: 0", *headers, "", ""]).encode()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (status("401 Unauthorized"), "MILLSTREAM_TOKEN"),
        (status("403 Forbidden"), "token="),
        (status("404 Not Found"), "no Millstream server"),
        (status("200 OK"), "no Millstream server"),
        (status("302 Found", "Location: http://127.0.0.1:1/"), "no Millstream server"),
        (status("503 Service Unavailable"), "try again later"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "cannot reach"),
        (b"", "closed"),
    ],
)
def test_what_is_no_server_of_ours_is_said_clearly(answer: bytes, says: str) -> None:
    with canned(answer) as server, pytest.raises(CannotOpen) as refused:
        millstream.open(server.url)
    assert says in refused.value.message
    assert refused.value.path == server.url


def test_a_port_where_nobody_listens_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(CannotOpen, match=f"127.0.0.1:{port}"):
        millstream.open(f"http://127.0.0.1:{port}")


async def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CannotOpen, match=r"within 0\.05 s"):
            millstream.open(url, connect_timeout=0.05)
        with pytest.raises(CannotOpen, match=r"within 0\.05 s"):
            await aio.open(url, connect_timeout=0.05)


@pytest.mark.parametrize(
    ("subprotocols", "first", "says"),
    [
        (None, b"", wire.SUBPROTOCOL),
        ([wire.SUBPROTOCOL], b"\x93", "no Millstream server"),
        (
            [wire.SUBPROTOCOL],
            wire.encode_hello(wire.Hello(99, "i", Limits(), 1, 1)),
            "version 99",
        ),
    ],
)
def test_a_socket_that_speaks_something_else_is_refused(
    subprotocols: Any, first: bytes, says: str
) -> None:
    def greet(connection: Any) -> None:
        connection.send(first)
        connection.recv()

    with serve(greet, "127.0.0.1", 0, subprotocols=subprotocols) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with pytest.raises(CannotOpen) as refused:
            millstream.open(f"ws://127.0.0.1:{server.socket.getsockname()[1]}")
        server.shutdown()
        thread.join()
    assert says in refused.value.message


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_token_is_sent_and_never_shown(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    if how == "environment":
        monkeypatch.setenv("MILLSTREAM_TOKEN", SECRET)
    with canned(status("401 Unauthorized")) as server, pytest.raises(CannotOpen) as refused:
        millstream.open(server.url, token=SECRET if how == "argument" else None)
    assert f"Authorization: Bearer {SECRET}".encode() in server.heard
    assert "refuses the token" in refused.value.message
    assert SECRET not in repr(refused.value) + str(refused.value.data) + caplog.text
    assert SECRET not in repr(parse_address("http://x", token=SECRET))


async def test_a_token_opens_what_it_allows(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        _, token = create_token(ms, "reader", ["log:write:orders*"])
    settings = Settings(port=0, auth="on", stop_s=1.0)
    with running(tmp_path / "a.db", settings) as server:
        with pytest.raises(CannotOpen, match="wants a token"):
            millstream.open(server.url)
        with pytest.raises(CannotOpen, match="refuses the token"):
            await aio.open(server.url, token=token[:-1] + "x")
        with millstream.open(server.url, token=token) as ms:
            assert repr(ms.session) == f"RemoteSession({server.url!r})"
            assert ms.log("orders").append(b"x") == 0
            with pytest.raises(MillstreamError, match="reader may not") as denied:
                ms.log("others").append(b"x")
            assert not isinstance(denied.value, OutcomeUnknown)


@pytest.mark.parametrize(
    "url",
    [
        f"http://{SECRET}@host",
        f"http://user:{SECRET}@host:1",
        "http://",
        f"http://host:{SECRET}",
        f"http://host/?token={SECRET}",
        "http://host/#a",
        "http://[::1",
    ],
)
def test_a_bad_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        millstream.open(url)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "socket_url"),
    [
        ("http://host:8080", "ws://host:8080/socket"),
        ("https://host/", "wss://host/socket"),
        ("ws://[::1]:5", "ws://[::1]:5/socket"),
        ("wss://host/below/it/", "wss://host/below/it/socket"),
        ("HTTP://Host", "ws://Host/socket"),
    ],
)
def test_every_kind_of_address_leads_to_the_socket(url: str, socket_url: str) -> None:
    address = parse_address(url)
    assert isinstance(address, Address)
    assert address.socket_url == socket_url
    assert (address.tls is not None) == socket_url.startswith("wss")


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "relaxed"},
        {"limits": Limits()},
        {"clock": SimulatedClock()},
        {"ca": "ca.pem"},
        {"token": "a\nb"},
        {"connect_timeout": -1},
        {"retry_for": float("nan")},
    ],
)
async def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options)).removesuffix("_for")):
        millstream.open("http://127.0.0.1:1", **options)
    with pytest.raises(InvalidInput):
        await aio.open("http://127.0.0.1:1", **options)


@pytest.mark.parametrize("option", ["token", "ca"])
async def test_a_file_knows_no_tokens(tmp_path: Path, option: str) -> None:
    options: dict[str, Any] = {option: "x"}
    with pytest.raises(InvalidInput, match=option):
        millstream.open(tmp_path / "a.db", **options)
    with pytest.raises(InvalidInput, match=option):
        await aio.open(tmp_path / "a.db", **options)
    assert not list(tmp_path.iterdir())


def test_the_library_is_loaded_only_for_an_address(tmp_path: Path) -> None:
    code = (
        "import sys, millstream, millstream.aio; millstream.open(sys.argv[1]).close(); "
        "print('websockets' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.db")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "False"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(CannotOpen, match=r"pip install 'millstream\[client\]'"):
        millstream.open("http://127.0.0.1:1")


def test_a_private_authority_is_trusted_if_it_is_named(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    settings = Settings(port=0, certificate=str(certificate), key=str(key), stop_s=1.0)
    with running(tmp_path / "a.db", settings) as server:
        with millstream.open(server.url, ca=str(certificate)) as ms:
            assert ms.log("a").append(b"x") == 0
        with pytest.raises(CannotOpen, match="ca="):
            millstream.open(server.url)
        with pytest.raises(CannotOpen):
            millstream.open(server.url.replace("https", "http"))
    with pytest.raises(CannotOpen, match="cannot be read"):
        millstream.open(server.url, ca=str(tmp_path / "none.pem"))
