"""A gateway: a foreign protocol on a port of its own, behind the same door as HTTP."""

from __future__ import annotations

import http.client
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

import millstream
from millstream.server.auth.tokens import create_token
from millstream.server.cluster import forwarder as forwarding
from millstream.server.gateways import connection
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.server.cluster.pretending import SETTINGS, Pair, paired
from tests.unit.server.lines import GATEWAY, SOON_S, entered, line_client, options

OPEN = Settings(port=0, stop_s=5.0)


def metric(server: Serving, name: str, **labels: str) -> float:
    """A figure of the server's registry; 0 if it is not there."""
    assert server.core is not None
    return server.core.meter.registry.get_sample_value(f"millstream_{name}", labels) or 0.0


def until(is_so: Any) -> None:
    """Wait for something that happens in the server's thread."""
    deadline_s = monotonic() + SOON_S
    while not is_so():
        assert monotonic() < deadline_s
        sleep(0.001)


def status_over_http(server: Serving) -> int:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SOON_S)
    client.request("GET", "/logs")
    status = client.getresponse().status
    client.close()
    return status


def test_both_ports_serve_one_store(tmp_path: Path) -> None:
    with running(tmp_path / "a.db", OPEN, **options()) as server, entered(server) as client:
        assert client.ask("APPEND orders one two") == "OK 0"
        with millstream.open(server.url) as ms:
            assert ms.log("orders").append(b"three") == 1
        assert client.ask("READ orders 0") == "OK one two"
        assert client.ask("READ orders 1") == "OK three"
        assert client.ask("READ orders 2").startswith("ERR NotFound")
        assert client.ask("APPEND a\0b x").startswith("ERR InvalidName")
        assert client.ask("QUIT") == "BYE"
        client.answer()
        assert client.answer() == ""


def test_a_client_is_let_in_by_its_own_credential_line_and_has_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with millstream.open(path) as ms:
        _, writer = create_token(ms, "writer", ["log:write:orders"])
    with running(path, Settings(port=0, auth="on"), **options()) as server:
        for first in ("HELLO", "TOKEN ms_no_token", "POST / HTTP/1.1"):
            with line_client(server, first) as client:
                assert client.answer().startswith("ERR Unauthenticated")
                assert client.answer() == ""
        assert metric(server, "denied_requests_total", reason="Unauthenticated") == 3
        with entered(server, writer) as client:
            assert client.ask("APPEND orders x") == "OK 0"
            assert client.ask("APPEND other x").startswith("ERR Denied")
        assert metric(server, "command_failures_total", command="Append", error="Denied") == 1


def test_commands_bytes_and_connections_are_counted(tmp_path: Path) -> None:
    with running(tmp_path / "a.db", OPEN, **options()) as server:
        received, sent = metric(server, "received_bytes_total"), metric(server, "sent_bytes_total")
        with entered(server) as client:
            assert client.ask("APPEND orders x") == "OK 0"
            assert metric(server, "command_seconds_count", command="Append") == 1
            assert metric(server, "connections") == 1
            assert metric(server, "received_bytes_total") - received == len(
                "HELLO\nAPPEND orders x\n"
            )
            assert metric(server, "sent_bytes_total") - sent == len("OK\nOK 0\n")
        until(lambda: metric(server, "connections") == 0)
        assert server.core is not None
        assert not server.core.quota.connections


def test_one_bound_holds_for_the_connections_of_all_ports(tmp_path: Path) -> None:
    settings = Settings(port=0, connections_max=2)
    with running(tmp_path / "a.db", settings, **options()) as server:
        with entered(server), entered(server):
            with line_client(server, "") as third:
                assert third.answer().startswith("ERR Overloaded too many connections")
                assert third.answer() == ""
            assert status_over_http(server) == 503
        until(lambda: metric(server, "connections") == 0)
        assert status_over_http(server) == 200


def test_a_client_that_shows_no_credential_in_time_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ENTER_S", 0.01)
    with (
        running(tmp_path / "a.db", OPEN, **options()) as server,
        line_client(server, "") as client,
        suppress(ConnectionError),  # a reset, or an end without a word
    ):
        assert client.answer() == ""


def test_a_stop_ends_waits_and_connections_and_finishes_what_was_begun(tmp_path: Path) -> None:
    with (
        running(tmp_path / "a.db", OPEN, **options()) as server,
        entered(server) as waiting,
        entered(server) as idle,
    ):
        assert server.core is not None
        feeds = server.core.session.feeds
        waiting.send("WAIT orders 0")
        until(lambda: len(feeds) > 0)
        server.stop()
        assert waiting.answer() == "ERR Closed the server is stopping"
        assert waiting.answer() == ""
        assert idle.answer() == ""


def test_a_port_that_is_taken_leaves_no_port_open(tmp_path: Path) -> None:
    with running(tmp_path / "a.db", OPEN, **options()) as server:
        taken = server.gateway_ports["line"]
        second = [type(GATEWAY)("line", GATEWAY.credentials, GATEWAY.connect, port=taken)]
        with pytest.raises(millstream.MillstreamError, match=str(taken)):
            Serving(tmp_path / "b.db", OPEN, gateways=second)


@pytest.fixture
def nodes(tmp_path: Path) -> Any:
    with paired(tmp_path / "shared.db", SETTINGS, gateways=[GATEWAY]) as pair:
        yield pair


def test_a_node_that_does_not_lead_hands_commands_on(nodes: Pair) -> None:
    follower = nodes.servers["b"]
    with entered(follower) as client, entered(nodes.servers["a"]) as other:
        assert client.ask("APPEND orders x") == "OK 0"
        assert other.ask("APPEND orders y") == "OK 1"
        assert client.ask("READ orders 1") == "OK y"
        assert follower.core is not None
        assert follower.core.seat is not None
        assert follower.core.seat.handed_on >= 2
        nodes.lead("b")
        assert client.ask("APPEND orders z") == "OK 2"
        assert other.ask("READ orders 2") == "OK z"


def test_a_node_without_a_leader_refuses_clearly(
    nodes: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "FORWARD_S", 0.0)
    monkeypatch.setattr("millstream.server.core.FORWARD_S", 0.0)
    with entered(nodes.servers["b"]) as client:
        nodes.lead(None)
        answer = client.ask("APPEND orders x")
        assert answer.startswith("ERR NotLeader")
        assert "nothing was done" in answer
