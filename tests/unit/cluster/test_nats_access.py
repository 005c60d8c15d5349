"""Which NATS servers an option names, what is shown to them, and which are not used."""

from __future__ import annotations

import gc
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.cluster.nats.access import ClusterTls, is_new_enough, parse_nats
from millstream.errors import InvalidInput
from tests.conformance.nats_kit import until


def test_credentials_are_taken_out_of_the_addresses() -> None:
    found = parse_nats("nats://ops:p%40ss@n1, nats://n2:5222,nats://ops:p%40ss@[::1]:6222")
    assert found.servers == ("nats://n1:4222", "nats://n2:5222", "nats://[::1]:6222")
    assert found.shown() == {"user": "ops", "password": "p@ss"}
    assert found.tls is None


def test_a_name_without_a_password_is_a_token() -> None:
    assert parse_nats("nats://s3cret@n1").shown() == {"token": "s3cret"}
    assert parse_nats("nats://n1").shown() == {}


@pytest.mark.parametrize(
    "text", ["", "n1:4222", "http://n1", "nats://", "nats://n1:x", "nats://n1/path", "nats://s@n1,"]
)
def test_what_names_no_server_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(InvalidInput, match="nats://HOST:PORT") as told:
        parse_nats(text)
    assert "s@n1" not in told.value.message


def test_servers_of_one_nats_want_the_same_of_every_node() -> None:
    with pytest.raises(InvalidInput, match="one user and password") as told:
        parse_nats("nats://a:secret@n1,nats://b:secret@n2")
    assert "secret" not in told.value.message


def test_tls_is_asked_for_by_the_scheme_or_by_files() -> None:
    assert parse_nats("tls://n1").tls == ClusterTls()
    assert parse_nats("nats://n1", ClusterTls(ca="ca.pem")).tls == ClusterTls(ca="ca.pem")
    assert parse_nats("nats://n1", ClusterTls()).tls is None


def test_files_of_tls_belong_together(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="both a certificate and its key"):
        ClusterTls(certificate="c.pem").check(serves=False)
    ClusterTls(ca="ca.pem").check(serves=False)
    with pytest.raises(InvalidInput, match="know each other by certificates"):
        ClusterTls(ca="ca.pem").check(serves=True)
    with pytest.raises(InvalidInput, match="--cluster-ca"):
        ClusterTls(ca=str(tmp_path / "none.pem")).context()


@pytest.mark.parametrize(
    ("version", "is_new"),
    [("2.15.0", True), ("2.15.1-beta.1", True), ("3.0.0", True), ("2.9.25", False), ("x", False)],
)
def test_servers_are_of_2_15_or_newer(version: str, is_new: bool) -> None:
    assert is_new_enough(version) is is_new


@contextmanager
def pretended(**info: Any) -> Iterator[str]:
    """A server that says what it is, and answers pings; its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                told = {"max_payload": 1 << 20, "version": "2.15.0", "headers": True, **info}
                line.sendall(b"INFO " + json.dumps(told).encode() + b"\r\n")
                while data := line.recv(4096):
                    if b"PING" in data:
                        line.sendall(b"PONG\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.requires("nats")
@pytest.mark.parametrize(
    ("info", "tls", "sentence"),
    [
        ({"version": "2.9.25"}, None, "needs nats-server 2.15 or newer, and the one at"),
        ({"max_payload": 65_536}, None, "raise max_payload"),
        ({}, ClusterTls(), "speaks plainly, and TLS was asked for"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_with_the_reason(
    info: dict[str, Any], tls: ClusterTls | None, sentence: str
) -> None:
    import msgspec

    from millstream.cluster.nats.connection import NatsConnection

    with pretended(**info) as place:
        line = NatsConnection(msgspec.structs.replace(parse_nats(place), tls=tls), name="test")
        try:
            until(lambda: sentence in line.refusal, "the server is refused")
        finally:
            line.close()


@pytest.mark.requires("nats")
def test_a_password_is_not_shown_to_a_server_that_speaks_plainly() -> None:
    """TLS was asked for: a machine in between could have taken the offer of it away."""
    from millstream.cluster.nats.connection import NatsConnection

    heard: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        line, _ = listener.accept()
        with line:
            line.sendall(b'INFO {"version": "2.15.0", "max_payload": 1048576}\r\n')
            while data := line.recv(4096):
                heard.append(data)

    thread = threading.Thread(target=serve)
    thread.start()
    place = f"tls://ops:secret@127.0.0.1:{listener.getsockname()[1]}"
    line = NatsConnection(parse_nats(place), name="test")
    try:
        until(lambda: "speaks plainly" in line.refusal, "the server is refused")
    finally:
        line.close()
        thread.join()
        listener.close()
    assert not heard


@pytest.mark.requires("nats")
def test_a_socket_whose_handshake_failed_is_closed() -> None:
    """Otherwise each try of a reconnect to a server that is starting costs an open file."""
    from millstream.cluster.nats.connection import NatsConnection

    events: list[str] = []
    info = b'INFO {"version": "2.15.0", "max_payload": 1048576, "headers": true}\r\n'
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for kind in ("lost", "refused", "good"):
            peer, _ = listener.accept()
            with peer:
                if kind == "refused":
                    peer.shutdown(socket.SHUT_WR)  # this side reads on until the client closes
                else:
                    peer.sendall(info)
                while data := peer.recv(4096):
                    if b"PING" in data:
                        peer.sendall(b"PONG\r\n")
                    if kind == "lost" and b"SUB" in data:
                        break  # the client was connected, and connects again
            events.append(f"{kind} closed")

    thread = threading.Thread(target=serve)
    thread.start()
    connection = NatsConnection(
        parse_nats(f"nats://127.0.0.1:{listener.getsockname()[1]}"), name="test"
    )
    try:
        until(lambda: "refused closed" in events, "the second socket is closed")
        connection.call(connection.connected(), timeout_s=50)
        gc.collect()
        assert events == ["lost closed", "refused closed"]
    finally:
        connection.close()
        thread.join()
        listener.close()
