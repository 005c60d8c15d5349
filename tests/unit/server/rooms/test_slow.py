"""Slow listeners: they are told of a gap, and nobody else notices them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

import millstream
from millstream.server.auth import quota
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.testing import Probe
from tests.unit.server.rooms.joining import Client, address, joined

BLOB = "x" * 50_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with running(tmp_path / "store.db", Settings(port=0)) as one:
        body = {
            "waiting_bytes_max": 300_000,
            "messages_per_second": 0,
            "retained": ["shape"],
            "priority": ["urgent"],
            "conflated": ["pointer"],
        }
        httpx.put(f"{one.url}/rooms/canvas/settings", json=body, timeout=60).raise_for_status()
        yield one


@contextmanager
def slow(server: Serving, **query: object) -> Iterator[Client]:
    """A client whose buffers are small, and which reads only when it is told to."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    plain.connect(("127.0.0.1", server.port))
    where = address(server, "canvas", **query)
    own = {"max_queue": 1, "ping_interval": None, "max_size": None, "close_timeout": 0.0}
    with connect(where, sock=plain, open_timeout=60, **own) as connection:
        client = Client(connection)
        client.take()
        yield client


def fill(writer: Client, first: int, count: int, reader: Client | None = None) -> None:
    for n in range(first, first + count):
        writer.send(("draw", [n, BLOB]), n=n)
        writer.until_sent(n)
        if reader is not None:
            reader.until_heard(len(reader.heard()) + 1)


def test_a_slow_listener_gets_a_gap_and_the_others_everything(server: Serving) -> None:
    with joined(server) as writer, joined(server) as quick, slow(server) as late:
        writer.send(("shape", "kept", "k"), n=1)
        quick.until_heard(1)
        fill(writer, 2, 200, reader=quick)
        assert [n for n, _ in quick.heard("draw")] == [*range(2, 202)]
        writer.send(("shape", "after", "k"), n=300)
        end = writer.until_sent(300)
        while not late.gaps:
            late.take()
        (gap,) = late.gaps
        heard = [one["offset"] for one in late.messages]
        assert heard == [*range(heard[0], gap["from"])]
        assert gap["to"] == end + 1
        assert late.retained is not None
        assert [one["data"] for one in late.retained] == ["after"]
        writer.send(("draw", "live again"), n=301)
        late.until_heard(len(heard) + 1)
        assert late.messages[-1]["data"] == "live again"
        assert len(late.gaps) == 1


def test_what_is_urgent_overtakes_what_waits(server: Serving) -> None:
    body = {"waiting_bytes_max": 64_000_000, "messages_per_second": 0, "priority": ["urgent"]}
    httpx.put(f"{server.url}/rooms/canvas/settings", json=body, timeout=60).raise_for_status()
    with joined(server) as writer, slow(server) as late:
        fill(writer, 1, 200)
        writer.send(("urgent", "now"), n=201)
        writer.until_sent(201)
        late.until_heard(201)
        draws = [data[0] for data in late.heard("draw")]
        assert draws == [*range(1, 201)]
        place = [one["type"] for one in late.messages].index("urgent")
        assert place < 200
        assert late.gaps == []
        assert late.offset == late.messages[-1]["offset"] + 2  # behind the urgent one


def test_a_listener_that_never_reads_holds_little(server: Serving) -> None:
    with joined(server) as writer, slow(server):
        fill(writer, 1, 300)
        assert server.core is not None
        with joined(server) as quick:
            writer.send(("draw", "still here"), n=301)
            assert quick.until_heard(1) == ["still here"]


def test_what_waits_for_all_listeners_of_a_token_is_bounded(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "WAITING_BYTES_MAX", 4 * len(BLOB))
    body = {"waiting_bytes_max": 64_000_000, "messages_per_second": 0}
    httpx.put(f"{server.url}/rooms/canvas/settings", json=body, timeout=60).raise_for_status()
    assert server.core is not None
    unread = server.core.quota.unread
    with joined(server) as writer, joined(server) as quick:
        with slow(server) as late:
            fill(writer, 1, 200, reader=quick)
            while not late.gaps:
                late.take()
            writer.send(("draw", "live again"), n=300)
            while not late.heard() or late.heard()[-1] != "live again":
                late.take()
            assert not unread
        with slow(server):
            fill(writer, 301, 100, reader=quick)
        probe = Probe(server.core.store)
        probe.until(lambda: not unread)  # who is gone holds nothing


def test_a_backlog_is_read_at_the_listeners_own_pace(server: Serving) -> None:
    with joined(server) as writer:
        fill(writer, 1, 100)
        with slow(server, offset=0, client="me") as late:
            fill(writer, 101, 5)  # less than may wait, if it has caught up by then
            late.until_heard(105)
            assert [n for n, _ in late.heard()] == [*range(1, 106)]
            assert late.gaps == []


def test_a_client_that_does_not_read_makes_no_server_ill_and_holds_nothing_back(
    server: Serving,
) -> None:
    assert server.core is not None
    probe, checkup = Probe(server.core.store), server.core.checkup
    with slow(server) as late, millstream.open(server.core.store.engine.place) as ms:
        log = ms.log("room:canvas")
        probe.until(lambda: len(log.cursors()) == 1)
        body = {"messages": [{"type": "draw", "data": BLOB}] * 20}
        for _ in range(100):
            httpx.post(
                f"{server.url}/rooms/canvas/messages", json=body, timeout=60
            ).raise_for_status()
            if "canvas" not in checkup.own_place().positions:
                break
        probe.until(lambda: not log.cursors())
        checks = {
            one["name"]: one
            for one in httpx.get(f"{server.url}/health", timeout=60).json()["checks"]
        }
        assert checks["rooms"]["status"] == "healthy"
        while not late.gaps:
            late.take()
        probe.until(lambda: len(log.cursors()) == 1)
