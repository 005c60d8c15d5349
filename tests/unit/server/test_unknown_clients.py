"""What a client can send before it is known: all of it is bounded, in bytes and in time."""

from __future__ import annotations

import socket as sockets
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream.server.auth.tokens import create_token
from millstream.server.listen import connection
from millstream.server.listen import tls as tls_ports
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.server.test_slow_clients import (
    SOON_S,
    answer_of,
    connections,
    eventually,
    plug,
    rest_of,
)

CHUNKED = b"Host: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b"x" * 65_536
FLOOD_BYTES = 16 * 1024 * 1024
"""Far more than any bound, and than what sockets on both sides hold back."""


@contextmanager
def serving(path: Path, **settings: Any) -> Iterator[Serving]:
    """A server that needs a token, and has one."""
    with millstream.open(path / "store.db") as ms:
        create_token(ms, "owner", ["store:admin"])
    settings = {"port": 0, "auth": "on", **settings}
    with running(path / "store.db", Settings(**settings), durability="relaxed") as server:
        yield server


def flood(bare: sockets.socket, piece: bytes = PIECE) -> int:
    """How much the server lets come before it cuts the connection."""
    sent = 0
    try:
        while sent < FLOOD_BYTES:
            bare.sendall(piece)
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"5\r\nhello\r\n0\r\nX-One: ", id="one long trailer"),
        pytest.param(b"5\r\nhello\r\n0\r\nX-", id="one long name of a trailer"),
        pytest.param(b"5;ext=", id="one long chunk extension"),
    ],
)
def test_a_client_without_a_token_cannot_send_without_end(tmp_path: Path, start: bytes) -> None:
    with serving(tmp_path) as server, plug(server) as bare:
        bare.sendall(b"POST /logs/a/records HTTP/1.1\r\n" + CHUNKED + start)
        assert flood(bare) < FLOOD_BYTES
        eventually(lambda: connections(server) == 0)


def test_many_short_trailers_are_too_much_as_well(tmp_path: Path) -> None:
    with serving(tmp_path) as server, plug(server) as bare:
        bare.sendall(b"POST /logs/a/records HTTP/1.1\r\n" + CHUNKED + b"0\r\n")
        assert flood(bare, b"x: y\r\n" * 10_000) < FLOOD_BYTES
        eventually(lambda: connections(server) == 0)


def test_also_a_known_client_cannot_send_trailers_without_end(tmp_path: Path) -> None:
    with serving(tmp_path, auth="off") as server, plug(server) as bare:
        bare.sendall(b"POST /logs/a/records HTTP/1.1\r\n" + CHUNKED + b"5\r\nhello\r\n0\r\nX-One: ")
        assert flood(bare) < FLOOD_BYTES
        eventually(lambda: connections(server) == 0)
        with millstream.open(server.url) as ms:
            assert len(ms.log("a")) == 0


def test_trailers_are_not_taken_for_headers(tmp_path: Path) -> None:
    """A token in a trailer lets nobody in, and a trailer changes nothing of the request."""
    with serving(tmp_path, auth="off") as server, plug(server) as bare:
        bare.sendall(
            b"POST /logs/a/records HTTP/1.1\r\nContent-Type: text/plain\r\nConnection: close\r\n"
            + CHUNKED
            + b"5\r\nhello\r\n0\r\nContent-Type: application/json\r\nX-Other: 1\r\n\r\n"
        )
        assert b"HTTP/1.1 201" in rest_of(bare)
        with millstream.open(server.url) as ms:
            assert [one.text for one in ms.log("a").read()] == ["hello"]


def test_a_refused_request_is_cut_while_its_body_still_comes(tmp_path: Path) -> None:
    with serving(tmp_path) as server, plug(server) as bare:
        bare.sendall(
            b"POST /logs/a/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000000\r\n\r\n"
        )
        assert b"HTTP/1.1 401" in bare.recv(65_536)
        assert flood(bare) < FLOOD_BYTES
        eventually(lambda: connections(server) == 0)


def test_a_refused_body_that_stops_coming_is_cut_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNREAD_S", 0.3)
    with serving(tmp_path) as server, plug(server) as bare:
        bare.sendall(
            b"POST /logs/a/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc"
        )
        assert b"HTTP/1.1 401" in rest_of(bare)
        eventually(lambda: connections(server) == 0)


def test_a_refused_request_with_a_short_body_keeps_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNREAD_S", SOON_S)
    monkeypatch.setattr(connection, "IDLE_S", SOON_S)
    with serving(tmp_path) as server, plug(server) as bare:
        for _ in range(3):
            bare.sendall(
                b"POST /logs/a/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\n"
            )
            assert b"HTTP/1.1 401" in answer_of(bare)  # before its body has come
            bare.sendall(b"hello")


def test_a_kept_connection_still_ends_when_nothing_follows_a_refused_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNREAD_S", SOON_S)
    monkeypatch.setattr(connection, "IDLE_S", 0.3)
    with serving(tmp_path) as server, plug(server) as bare:
        bare.sendall(
            b"POST /logs/a/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\n"
        )
        assert b"HTTP/1.1 401" in answer_of(bare)
        bare.sendall(b"hello")
        assert rest_of(bare) == b""
        eventually(lambda: connections(server) == 0)


# TLS.


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, str]:
    """Settings of a server with a certificate for 127.0.0.1 that nobody else trusts."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "1"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return {"certificate": str(certificate), "key": str(key)}


def trusting(tls: dict[str, str]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=tls["certificate"])


def test_a_handshake_counts_as_a_connection_and_has_a_time_limit(
    tmp_path: Path, tls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    greeting = b"\x16\x03\x01\x02\x00"  # its first five bytes
    with serving(tmp_path, **tls) as server:
        monkeypatch.setattr(tls_ports, "HANDSHAKE_S", SOON_S)
        with plug(server) as silent, plug(server) as slow:
            slow.sendall(greeting)
            eventually(lambda: connections(server) == 2)
        eventually(lambda: connections(server) == 0)
        monkeypatch.setattr(tls_ports, "HANDSHAKE_S", 0.5)
        with plug(server) as silent, plug(server) as slow:
            with suppress(ConnectionError):  # we may be so slow that the server has ended it
                slow.sendall(greeting)
            assert rest_of(silent) == rest_of(slow) == b""
            eventually(lambda: connections(server) == 0)


def test_handshakes_take_places_from_nobody_who_is_connected(
    tmp_path: Path, tls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REFUSED_MAX", 1)
    with (
        serving(tmp_path, connections_max=3, **tls) as server,
        httpx.Client(base_url=server.url, verify=trusting(tls), timeout=SOON_S) as kept,
    ):
        assert kept.get("/health").status_code == 200
        with plug(server), plug(server), plug(server):
            eventually(lambda: connections(server) == 4)
            with plug(server) as one_too_many:
                assert rest_of(one_too_many) == b""
            assert kept.get("/health").status_code == 200
        eventually(lambda: connections(server) == 1)


def test_what_is_no_handshake_is_let_go(tmp_path: Path, tls: dict[str, str]) -> None:
    with serving(tmp_path, **tls) as server:
        with plug(server) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            rest_of(plain)
        with plug(server) as leaving:
            leaving.sendall(b"\x16\x03\x01")
        eventually(lambda: connections(server) == 0)
        assert (
            httpx.get(f"{server.url}/health", verify=trusting(tls), timeout=60).status_code == 200
        )


def test_a_server_stops_although_somebody_does_not_finish_the_handshake(
    tmp_path: Path, tls: dict[str, str]
) -> None:
    with serving(tmp_path, **tls) as server, plug(server) as silent:
        eventually(lambda: connections(server) == 1)
        server.stop()
        assert rest_of(silent) == b""
