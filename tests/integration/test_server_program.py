"""`millstream serve` as a process: it ends in time under load, and what is hostile costs it nothing."""

from __future__ import annotations

import os
import signal
import socket as sockets
import struct
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

import millstream
from millstream import Producer
from millstream.errors import MillstreamError
from millstream.wire import commands as wire
from tests.integration.programs import program

MIB = 1024 * 1024
STOP_S = 5.0
SLACK_S = 15.0
"""For a machine that is busy with other things: the promise is STOP_S."""

ROUNDS = 25
GROWTH_BYTES_MAX = 40 * MIB


class Load(threading.Thread):
    """Something that is done again and again until the server is gone."""

    def __init__(self, ask: Any) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self.rounds = 0
        self.is_over = False
        self.start()

    def run(self) -> None:
        while not self.is_over:
            try:
                self._ask(self.rounds)
            except (MillstreamError, OSError, httpx.HTTPError):
                continue
            self.rounds += 1


def test_it_ends_in_time_under_load_and_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    acknowledged: dict[str, int] = {}
    with program(tmp_path) as (process, url):
        sessions = [millstream.open(url, retry_for=0.0) for _ in range(4)]
        sessions[0].queue("idle", max_attempts=2)

        def append(name: str) -> Any:
            def once(number: int) -> None:
                log = sessions[number % 4].log(name)
                values = [b"x" * 1_000] * 50
                log.append_many(values, producer=Producer(name, acknowledged.get(name, 0)))
                acknowledged[name] = acknowledged.get(name, 0) + 1

            return once

        loads = [Load(append(f"log{n}")) for n in range(6)]
        loads += [Load(lambda _: sessions[1].queue("idle").claim(wait=30)) for _ in range(3)]
        loads += [Load(lambda _: sessions[2].log("none").wait(0, timeout=30)) for _ in range(3)]
        loads += [Load(lambda _: httpx.get(f"{url}/logs/none/records?wait=30", timeout=60))]
        place = urlsplit(url)
        lazy = [sockets.create_connection((place.hostname, place.port)) for _ in range(3)]
        for one in lazy:
            one.sendall(b"GET /logs/log0/records?limit=10000 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        while min(load.rounds for load in loads[:6]) < 3:
            assert process.poll() is None
            threading.Event().wait(0.01)
        began_s = monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        took_s = monotonic() - began_s
        for load in loads:
            load.is_over = True
        for load in loads:
            load.join(60)
        for session in sessions:
            session.close()
        for one in lazy:
            one.close()
    assert took_s < STOP_S + SLACK_S
    with millstream.open(tmp_path / "store.db") as ms:
        for name, count in acknowledged.items():
            assert len(ms.log(name)) in (50 * count, 50 * (count + 1))


def test_it_ends_in_time_while_many_groups_are_routed(tmp_path: Path) -> None:
    groups, part = 60_000, 2_000
    with program(tmp_path) as (process, url):
        with millstream.open(url) as ms:
            queue = ms.queue("q", group_by="_key", sources="a")
            for first in range(0, groups, part):
                names = [f"k{number}" for number in range(first, first + part)]
                ms.log("a").append_many([b"x"] * part, keys=names)
            while queue.info().available < groups // 3:
                assert process.poll() is None
                threading.Event().wait(0.01)
        began_s = monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        took_s = monotonic() - began_s
    assert took_s < STOP_S + SLACK_S
    with millstream.open(tmp_path / "store.db") as ms:
        info = ms.queue("q").info()
        assert info.available + info.unrouted == groups


def test_a_second_server_on_the_port_says_what_to_do(tmp_path: Path) -> None:
    with program(tmp_path) as (_, url):
        port = str(urlsplit(url).port)
        done = subprocess.run(
            [sys.executable, "-m", "millstream", "serve", "other.db", "--port", port],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode != 0
        assert "something else listens there" in done.stderr
        assert "--port" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "other.db").exists()
        assert httpx.get(f"{url}/health", timeout=60).json()["status"] in ("healthy", "warning")


# Hostile input.


def resident_bytes(process: subprocess.Popen[bytes]) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")


def _post(url: str, body: bytes, kind: str = "application/json") -> None:
    answer = httpx.post(
        f"{url}/logs/a/records", content=body, headers={"content-type": kind}, timeout=60
    )
    assert 400 <= answer.status_code < 500, answer.text


def _frame(url: str, frame: bytes) -> None:
    address = url.replace("http://", "ws://") + "/socket"
    with connect(
        address,
        subprotocols=[wire.SUBPROTOCOL],  # type: ignore[list-item]
        compression=None,
        open_timeout=60,
    ) as socket:
        socket.recv()
        try:
            socket.send(frame)
            socket.recv(timeout=30)
        except WebSocketException:
            return
    raise AssertionError("it was taken")


def _raw(url: str, *parts: bytes) -> None:
    place = urlsplit(url)
    with sockets.create_connection((place.hostname, place.port), timeout=30) as bare:
        try:
            for part in parts:
                bare.sendall(part)
            bare.shutdown(sockets.SHUT_WR)
            while bare.recv(65_536):
                pass
        except OSError:
            pass


HEAD = b"POST /logs/a/records HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UPGRADE = (
    b"GET /socket HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: millstream.v1\r\n\r\n"
)
DEEP = msgspec.msgpack.encode([1])[:1] * 500_000


def hostile(url: str) -> None:
    """One of each."""
    _post(url, b'{"value": ' + b"[" * 500_000)
    _post(url, b'{"value": [' + b"1," * 600_000 + b"1]}")
    _post(url, b'{"records": [' + b'{"value": 1},' * 100_001 + b"]}")
    _frame(url, DEEP)
    _frame(url, b"\xdd\xff\xff\xff\xff" + b"\x92\x01" * 1_000)
    _frame(url, os.urandom(1_000_000))
    _raw(url, HEAD + b"Content-Length: 99999999999999999999\r\n\r\n")
    _raw(url, HEAD + b"Content-Length: 1000000\r\n\r\n" + b"x" * 1_000)
    _raw(url, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"FFFFFFFF\r\n" + b"x" * 100_000)
    _raw(url, b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000)
    _raw(url, os.urandom(100_000))
    _raw(url, UPGRADE, b"\x82\xff" + struct.pack(">Q", 2**62) + b"mask" + b"x" * 100_000)
    _raw(url, UPGRADE, b"\x02\xfe" + struct.pack(">H", 60_000) + b"mask" + b"x" * 10_000)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_hostile_input_costs_no_memory_and_harms_nobody(tmp_path: Path) -> None:
    with program(tmp_path) as (process, url), millstream.open(url) as ms:
        log = ms.log("good")
        for _ in range(10):  # what is used once is there from then on
            hostile(url)
            log.append(b"x")
        before = resident_bytes(process)
        for _ in range(ROUNDS):
            hostile(url)
            log.append(b"x")  # over the connection that it has had all the time
        grown = resident_bytes(process) - before
        assert grown < GROWTH_BYTES_MAX, f"{grown // MIB} MiB more"
        assert len(log) == ROUNDS + 10
        assert len(ms.log("a")) == 0
