"""Clients that send slowly, read slowly, stop half-way or say nothing: they are let go, others served."""

from __future__ import annotations

import base64
import os
import re
import socket as sockets
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

import millstream
from millstream.log import commands as logs
from millstream.server.auth.register import Registrar
from millstream.server.auth.tokens import create_token
from millstream.server.listen import connection
from millstream.server.rest import routing
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.wire import commands as wire
from tests.unit.server.talking import single, talking

SOON_S = 60.0
"""By then a test gives up: only a failure takes so long."""


def eventually(holds: Callable[[], bool]) -> None:
    deadline = monotonic() + SOON_S
    while not holds():
        assert monotonic() < deadline
        sleep(0.01)


@contextmanager
def serving(path: Path, **settings: Any) -> Iterator[Serving]:
    with running(path / "store.db", Settings(port=0, **settings), durability="relaxed") as server:
        yield server


@contextmanager
def plug(server: Serving) -> Iterator[sockets.socket]:
    """A bare connection."""
    with sockets.create_connection(("127.0.0.1", server.port), timeout=SOON_S) as found:
        yield found


def rest_of(bare: sockets.socket) -> bytes:
    """Everything up to the end, however it comes."""
    found = b""
    try:
        while data := bare.recv(65_536):
            found += data
    except ConnectionError:
        pass
    return found


def answer_of(bare: sockets.socket) -> bytes:
    """One whole answer, in however many pieces it comes; less if the connection ends before."""
    found = b""
    try:
        while not _is_whole(found) and (data := bare.recv(65_536)):
            found += data
    except ConnectionError:
        pass
    return found


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


def connections(server: Serving) -> int:
    core = server.core
    assert core is not None
    return int(core.meter.registry.get_sample_value("millstream_connections") or 0)


def upgrade(server: Serving, bare: sockets.socket, *more: str) -> None:
    """Become a WebSocket, and read the greeting; from here on nobody answers pings."""
    key = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET /socket HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: {wire.SUBPROTOCOL}\r\n{''.join(more)}\r\n"
    )
    bare.sendall(head.encode())
    assert b" 101 " in bare.recv(65_536)


# Slow senders.


def test_a_head_that_does_not_come_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.3)
    with serving(tmp_path) as server, plug(server) as silent, plug(server) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        eventually(lambda: _refuses_another_byte(slow))  # bytes now and then do not help
        assert rest_of(silent) == b""
        assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
        eventually(lambda: connections(server) == 0)


def _refuses_another_byte(slow: sockets.socket) -> bool:
    """Send a byte, and return whether the connection has ended."""
    try:
        slow.sendall(b"x")
    except ConnectionError:
        return True
    return False


HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
APPEND = (
    b"POST /logs/a/records HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 3\r\n\r\nabc"
)
"""A request that the framework answers, and a hot one."""


CLOCK_S = 0.002
"""The server's event loop counts whole milliseconds, so a wait may end a little early."""


@pytest.mark.parametrize("requests", [[HEALTH] * 3, [APPEND] * 3, [APPEND, HEALTH, APPEND]])
def test_a_connection_is_not_kept_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: list[bytes]
) -> None:
    for idle_s in (0.3, 3.0, 30.0):
        monkeypatch.setattr(connection, "IDLE_S", idle_s)
        with serving(tmp_path) as server:
            is_answered = _are_answered_in_turn(server, requests, idle_s=idle_s)
            eventually(lambda server=server: connections(server) == 0)  # type: ignore[misc]
        if is_answered:
            return
    pytest.fail("the connection ends between two requests")


def _are_answered_in_turn(server: Serving, requests: list[bytes], *, idle_s: float) -> bool:
    """Ask on one connection, up to its end; False if we were so slow that it had to end before."""
    with plug(server) as kept:
        for request in requests:
            began_s = monotonic()
            try:
                kept.sendall(request)
            except ConnectionError:
                return False
            if not (answer := answer_of(kept)):
                return False
            assert b" 20" in answer.partition(b"\r\n")[0]
        assert rest_of(kept) == b""
        assert monotonic() - began_s >= idle_s - CLOCK_S
    return True


@pytest.mark.parametrize("more", [b"POST /logs/a/rec", b"\r\n", b"G"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_next_head_that_does_not_come_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: bytes, at_once: bool
) -> None:
    monkeypatch.setattr(connection, "IDLE_S", 0.3)
    with serving(tmp_path) as server, plug(server) as slow:
        eventually(lambda: connections(server) == 1)
        monkeypatch.setattr(connection, "HEAD_S", 0.3)  # from here on: the first head may take long
        slow.sendall(APPEND + more if at_once else APPEND)
        assert b" 201 " in answer_of(slow)
        if not at_once:
            with suppress(
                ConnectionError
            ):  # we may be so slow that the connection was idle for long
                slow.sendall(more)
        assert rest_of(slow) == b""
        eventually(lambda: connections(server) == 0)


def test_a_body_that_does_not_come_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "BODY_S", 0.3)
    with serving(tmp_path) as server, plug(server) as slow:
        slow.sendall(
            b"POST /logs/a/records HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Type: text/plain\r\nContent-Length: 1000\r\n\r\nabc"
        )
        answer = rest_of(slow)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"TooSlow" in answer
        with millstream.open(server.url) as ms:
            assert len(ms.log("a")) == 0


# Slow readers.


def test_who_does_not_read_an_answer_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "READ_S", 0.5)
    with serving(tmp_path) as server:
        with millstream.open(server.url) as ms:
            ms.log("a").append_many([b"x" * 1_000_000] * 12)
        eventually(lambda: connections(server) == 0)
        with sockets.socket() as lazy:
            lazy.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
            lazy.settimeout(SOON_S)
            lazy.connect(("127.0.0.1", server.port))
            eventually(lambda: connections(server) == 1)
            lazy.sendall(
                b"GET /logs/a/records/0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
                b"GET /logs/a/records HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            )
            eventually(lambda: connections(server) == 0)
            assert len(rest_of(lazy)) < 12_000_000


def test_who_reads_slowly_but_steadily_gets_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "READ_S", 2.0)
    with serving(tmp_path) as server:
        value = os.urandom(8_000_000)
        with millstream.open(server.url) as ms:
            ms.log("a").append(value)
        eventually(lambda: _gets_all_slowly(server, value))


def _gets_all_slowly(server: Serving, value: bytes) -> bool:
    """Read a value in longer than `READ_S`; False if we paused so long that we had to be cut."""
    found, longest_s, last_s = b"", 0.0, monotonic()
    with plug(server) as slow, suppress(ConnectionError):
        slow.sendall(
            b"GET /logs/a/records/0 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        while data := slow.recv(200_000):
            found += data
            sleep(0.08)
            longest_s, last_s = max(longest_s, monotonic() - last_s), monotonic()
    if len(found) > len(value):
        return found.endswith(value)
    assert longest_s >= connection.READ_S / 2, "it read steadily, and was cut all the same"
    return False


def test_a_socket_that_answers_no_ping_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PING_S", 0.2)
    monkeypatch.setattr(connection, "PONG_S", 3.0)
    with serving(tmp_path) as server, plug(server) as dead, talking(server) as alive:
        upgrade(server, dead)
        rest_of(dead)
        eventually(lambda: connections(server) == 1)
        assert alive.ask(logs.GetBounds("a")) == (0, 0)


# Half-closed.


def test_who_stops_sending_is_let_go(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with plug(server) as half:
            half.shutdown(sockets.SHUT_WR)
            assert rest_of(half) == b""
        with plug(server) as half:  # in the middle of a head
            half.sendall(b"GET /health HTTP/1.1\r\nHost:")
            half.shutdown(sockets.SHUT_WR)
            rest_of(half)
        with plug(server) as half:  # in the middle of a body
            half.sendall(
                b"POST /logs/a/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nabc"
            )
            half.shutdown(sockets.SHUT_WR)
            rest_of(half)
        with plug(server) as half:  # in the middle of a frame
            upgrade(server, half)
            half.sendall(b"\x82\xfe" + struct.pack(">H", 1_000) + b"mask" + b"x" * 10)
            half.shutdown(sockets.SHUT_WR)
            rest_of(half)
        eventually(lambda: connections(server) == 0)
        with millstream.open(server.url) as ms:
            assert len(ms.log("a")) == 0


def test_a_wait_of_somebody_who_left_is_given_up(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with plug(server) as leaving:
            leaving.sendall(b"GET /logs/a/records?wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            core = server.core
            assert core is not None
            value = core.meter.registry.get_sample_value
            eventually(lambda: value("millstream_requests_open") == 1)
        eventually(lambda: value("millstream_requests_open") == 0)


# Tokens that no longer count.


def test_a_revoked_token_ends_also_a_connection_that_only_listens(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "store.db") as ms:
        _, text = create_token(ms, "listener", ["log:read:a"])
        _, other = create_token(ms, "writer", ["log:write:a"])
    with serving(tmp_path, auth="on") as server:
        bearer = {"authorization": f"Bearer {text}"}
        writer = {"authorization": f"Bearer {other}"}
        with (
            talking(server, additional_headers=bearer) as listening,
            talking(server, additional_headers=writer) as writing,
        ):
            listening.send((1, logs.WaitForOffset("a", 0, 60_000)))
            with millstream.open(tmp_path / "store.db") as ms:
                Registrar(ms).revoke("listener")
            assert listening.ending() == (1008, "the token has expired, or was revoked")
            assert writing.ask(logs.Append("a", single("x"))) == 0


def test_a_wait_that_outlives_its_token_is_told_nothing(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "store.db") as ms:
        _, text = create_token(ms, "short", ["log:read:a"], expires_ms=1_000)
        with serving(tmp_path, auth="on") as server:
            answer = httpx.get(
                f"{server.url}/logs/a/records?wait=1.5",
                headers={"authorization": f"Bearer {text}"},
                timeout=SOON_S,
            )
        assert answer.status_code == 401
