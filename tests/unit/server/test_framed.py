"""Connections that were upgraded to frames: the same guard and bounds as any, and hostile clients."""

from __future__ import annotations

import socket as sockets
import ssl
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

import millstream
from millstream.log import commands as logs
from millstream.server.auth.register import Registrar
from millstream.server.auth.tokens import create_token
from millstream.server.listen import framed as connection
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.wire import commands as wire
from millstream.wire import framing
from millstream.wire.framing import PING, PONG
from tests.unit.server.frames import FramedSocket, framed, read_head, request
from tests.unit.server.talking import Talk, single, talking
from tests.unit.server.test_slow_clients import (
    SOON_S,
    connections,
    eventually,
    plug,
    rest_of,
    serving,
)


def talk_to(found: FramedSocket) -> Talk:
    return Talk(found)  # type: ignore[arg-type]


def refused(server: Serving, *more: str, path: str = "/socket") -> bytes:
    """The head of an answer that is no upgrade."""
    with plug(server) as raw:
        raw.sendall(request(server, *more, path=path))
        head, _ = read_head(raw)
        assert b" 101 " not in head
        return head.split(b"\r\n")[0]


# The upgrade.


def test_the_answer_is_an_upgrade_and_the_first_frame_the_greeting(tmp_path: Path) -> None:
    with serving(tmp_path) as server, plug(server) as raw:
        raw.sendall(request(server, "X-Request-Id: mine"))
        head, rest = read_head(raw)
        lines = head.lower().split(b"\r\n")
        assert lines[0] == b"http/1.1 101 switching protocols"
        assert {b"connection: upgrade", b"upgrade: millstream", b"x-request-id: mine"} <= {*lines}
        talk = talk_to(FramedSocket(raw, rest))
        assert talk.hello.version == wire.VERSION
        assert talk.ask(logs.Append("a", single("x"))) == 0


def test_elsewhere_an_upgrade_is_passed_over(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert refused(server, path="/logs/none") == b"HTTP/1.1 404 Not Found"
        assert refused(server, path="/health") == b"HTTP/1.1 200 OK"
        with plug(server) as raw:
            raw.sendall(request(server).replace(b"GET", b"POST"))
            assert b" 101 " not in read_head(raw)[0]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("Authorization: Bearer ms_wrong", b"HTTP/1.1 401 Unauthorized"),
        ("Origin: https://elsewhere.example", b"HTTP/1.1 403 Forbidden"),
    ],
)
def test_the_guard_refuses_as_it_refuses_any_request(
    tmp_path: Path, line: str, status: bytes
) -> None:
    with serving(tmp_path) as server:
        assert refused(server, line) == status
        eventually(lambda: connections(server) == 0)
        with plug(server) as raw:
            named = request(server).replace(b"Host: 127.0.0.1", b"Host: evil.example")
            raw.sendall(named)
            assert b" 403 " in read_head(raw)[0]


def test_a_token_opens_the_door_and_a_revoked_one_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with millstream.open(tmp_path / "store.db") as ms:
        _, text = create_token(ms, "t", ["log:read:*"])
    with serving(tmp_path, auth="on") as server:
        assert refused(server) == b"HTTP/1.1 401 Unauthorized"
        with framed(server, f"Authorization: Bearer {text}") as found:
            talk = talk_to(found)
            assert talk.ask(logs.GetBounds("a")) == (0, 0)
            with millstream.open(tmp_path / "store.db") as ms:
                Registrar(ms).revoke("t")
            assert talk.ending() == (1008, "the token has expired, or was revoked")


def test_connections_are_counted_and_bounded(tmp_path: Path) -> None:
    with serving(tmp_path, connections_max=2) as server:
        with framed(server), framed(server):
            assert connections(server) == 2
            assert refused(server) == b"HTTP/1.1 503 Service Unavailable"
        eventually(lambda: connections(server) == 0)
        with framed(server) as found:
            assert talk_to(found).ask(logs.GetBounds("a")) == (0, 0)


def test_frames_travel_over_tls(tmp_path: Path) -> None:
    found, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", found, "-keyout", key]
    subprocess.run(command, check=True, capture_output=True)
    trusting = ssl.create_default_context(cafile=found)
    with (
        serving(tmp_path, certificate=found, key=key) as server,
        plug(server) as bare,
        trusting.wrap_socket(bare, server_hostname="127.0.0.1") as raw,
    ):
        raw.sendall(request(server))
        head, rest = read_head(raw)
        assert b" 101 " in head
        talk = talk_to(FramedSocket(raw, rest))
        assert talk.ask(logs.Append("a", single(bytes(300_000)))) == 0


# Hostile clients.


@pytest.mark.parametrize("half", [b"\x00", b"\x00\x64\x00\x00\x00", framing.frame(bytes(100))[:-1]])
def test_a_frame_that_does_not_go_on_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bytes
) -> None:
    monkeypatch.setattr(connection, "LOOK_S", 0.1)
    with serving(tmp_path) as server, framed(server) as idle, framed(server) as slow:
        slow.socket.sendall(half)
        assert rest_of(slow.socket) != b"x"  # it ends, after the greeting
        assert talk_to(idle).ask(logs.GetBounds("a")) == (0, 0)
        eventually(lambda: connections(server) == 1)


def test_bytes_now_and_then_do_not_keep_a_frame_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOOK_S", 0.1)
    with serving(tmp_path) as server, framed(server) as slow:
        slow.socket.sendall(framing.HEAD.pack(0, 10_000_000))
        for _ in range(2_000):
            try:
                slow.socket.sendall(b"x")
            except ConnectionError:
                break
            sleep(0.01)
        eventually(lambda: connections(server) == 0)


def test_a_large_frame_may_take_its_time_while_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOOK_S", 0.1)
    monkeypatch.setattr(connection, "PROGRESS_BYTES_MIN", 1)
    with serving(tmp_path) as server:
        eventually(lambda: _is_taken_in_pieces(server))


def _is_taken_in_pieces(server: Serving) -> bool:
    """Send a frame over several looks; False if we were so slow that it had to be let go."""
    sent = framing.frame(wire.encode_requests([(0, logs.Append("a", single(bytes(3_000))))]))
    longest_s = 0.0
    with framed(server) as slow:
        talk, last_s = talk_to(slow), monotonic()
        try:
            for start in range(0, len(sent), 100):
                slow.socket.sendall(sent[start : start + 100])
                longest_s, last_s = max(longest_s, monotonic() - last_s), monotonic()
                sleep(0.01)
            assert talk.answers(1) == {0: 0}
        except (ConnectionError, ConnectionClosed):
            assert longest_s >= connection.LOOK_S / 2, "it went on, and was let go all the same"
            return False
    return True


def test_a_client_that_does_not_read_its_answers_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOOK_S", 0.2)
    with serving(tmp_path) as server, framed(server) as deaf, talking(server) as neighbour:
        neighbour.ask(logs.SetMetadata("a", "k", "x" * 60_000))
        asked = [(n, logs.GetMetadata("a")) for n in range(200)]
        deaf.socket.sendall(framing.frame(wire.encode_requests(asked)))
        eventually(lambda: connections(server) == 1)
        assert neighbour.ask(logs.GetBounds("a")) == (0, 0)


def _is_cut_while_asking(server: Serving, raw: sockets.socket, numbers: Iterator[int]) -> bool:
    """Ask once more, and return whether the server has cut this connection beside a neighbour's.

    The server looks at the bound when it adds an answer behind one that the client does not take. All
    answers of a single frame may be added before that.
    """
    try:
        raw.sendall(framing.frame(wire.encode_requests([(next(numbers), logs.GetMetadata("a"))])))
    except ConnectionError:
        pass
    return connections(server) == 1


def test_answers_that_pile_up_cut_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOOK_S", 10 * SOON_S)  # a look would cut it as well
    numbers = count(200)
    with serving(tmp_path, send_bytes_max=200_000) as server, talking(server) as neighbour:
        neighbour.ask(logs.SetMetadata("a", "k", "x" * 60_000))
        with sockets.socket() as raw:
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", server.port))
            raw.sendall(request(server))
            assert raw.recv(12) == b"HTTP/1.1 101"  # and never again
            asked = [(n, logs.GetMetadata("a")) for n in range(200)]
            raw.sendall(framing.frame(wire.encode_requests(asked)))
            eventually(lambda: _is_cut_while_asking(server, raw, numbers))


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (framing.HEAD.pack(0, 2**32 - 1), 1009),
        (framing.HEAD.pack(2, 126), 1009),
        (framing.HEAD.pack(77, 0), 1007),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 1007),
        (framing.frame(b"\xc1"), 1007),
    ],
)
def test_what_is_no_frame_is_told_so(tmp_path: Path, sent: bytes, code: int) -> None:
    with serving(tmp_path) as server, framed(server) as found:
        talk = talk_to(found)
        found.socket.sendall(sent + bytes(100_000))
        assert talk.ending()[0] == code
        found.socket.close()
        eventually(lambda: connections(server) == 0)


def test_a_client_that_stays_after_the_end_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CLOSE_S", 0.2)
    with serving(tmp_path) as server, framed(server) as found:
        found.socket.sendall(framing.HEAD.pack(77, 0))
        eventually(lambda: connections(server) == 0)


def test_a_flood_of_pings_and_empty_frames_disturbs_nobody(tmp_path: Path) -> None:
    with serving(tmp_path) as server, framed(server) as found, talking(server) as neighbour:
        talk = talk_to(found)
        found.socket.sendall(framing.frame(b"", PING) * 1_000)
        for _ in range(1_000):
            assert found.frame() == (PONG, b"")
        empty = framing.frame(wire.encode_requests([]))
        found.socket.sendall(empty * 5_000)
        assert talk.ask(logs.GetBounds("a")) == (0, 0)
        assert neighbour.ask(logs.GetBounds("a")) == (0, 0)


def test_bytes_before_the_answer_count_for_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as server, plug(server) as raw:
        raw.sendall(request(server) + framing.frame(b"\xc1"))
        head, rest = read_head(raw)
        assert b" 101 " in head
        assert talk_to(FramedSocket(raw, rest)).ask(logs.GetBounds("a")) == (0, 0)


def test_what_is_sent_at_once_is_counted(tmp_path: Path) -> None:
    with serving(tmp_path) as server, framed(server) as found:
        talk = talk_to(found)
        talk.ask(logs.SetMetadata("a", "k", "x" * 50_000))
        before = sent_bytes(server)
        assert talk.ask(logs.GetMetadata("a"))
        assert sent_bytes(server) - before > 50_000


def sent_bytes(server: Serving) -> float:
    assert server.core is not None
    return server.core.meter.registry.get_sample_value("millstream_sent_bytes_total") or 0.0


# Quiet clients, and the end.


def test_a_quiet_client_is_pinged_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOOK_S", 0.05)
    with serving(tmp_path) as server, framed(server) as quiet:
        talk = talk_to(quiet)
        assert [quiet.frame()[0] for _ in range(3)] == [PING] * 3
        assert talk.ask(logs.GetBounds("a")) == (0, 0)


def test_a_client_that_says_goodbye_leaves_no_connection(tmp_path: Path) -> None:
    with serving(tmp_path) as server, framed(server) as found:
        found.socket.sendall(framing.close_frame(1000, ""))
        rest_of(found.socket)
        eventually(lambda: connections(server) == 0)


def test_a_server_that_stops_waits_for_no_quiet_client(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"port": 0, "stop_s": 3 * SOON_S}
    with running(tmp_path / "store.db", Settings(**settings)) as server, framed(server) as quiet:
        talk = talk_to(quiet)
        began_s = monotonic()
        server.stop()
        assert talk.ending() == (1001, "the server is stopping")
    assert monotonic() - began_s < SOON_S


def test_rest_goes_on_beside_frames(tmp_path: Path) -> None:
    with serving(tmp_path) as server, framed(server) as found:
        talk = talk_to(found)
        assert talk.ask(logs.Append("a", single("x"))) == 0
        assert httpx.get(f"{server.url}/logs/a", timeout=60).status_code == 200
