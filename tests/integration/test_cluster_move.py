"""The shared log of a running cluster is closed and begins anew elsewhere, with all that it held."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.cluster.trial import HOST, free_ports
from millstream.errors import MillstreamError
from tests.conformance.nats_kit import until
from tests.integration.own_nats import Nodes, nodes_on, own_nats

pytestmark = [
    pytest.mark.requires("nats"),
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(900),
]


def ask(nodes: Nodes, *arguments: str) -> Any:
    done = nodes.ask(*arguments, "--yes")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def append(nodes: Nodes, value: bytes) -> None:
    with millstream.open(nodes.addresses, retry_for=30.0) as ms:
        ms.log("orders").append(value)


def close(nodes: Nodes) -> None:
    """Close the log: every node stops behind the same entry, and none takes a write."""
    closed = ask(nodes, "close")
    assert closed["nodes"] == sorted(nodes.ports)
    assert {one.sequence for one in nodes.reports().values()} == {closed["last"]}
    with pytest.raises(MillstreamError), millstream.open(nodes.addresses, retry_for=1.0) as ms:
        ms.log("orders").append(b"too late")
    with millstream.open(nodes.addresses, read_level="eventual") as ms:
        assert ms.log("orders").end_offset() > 0


def test_a_cluster_moves_to_another_nats_with_more_replicas(tmp_path: Path) -> None:
    with ExitStack() as stack:
        old = stack.enter_context(own_nats(tmp_path / "one", servers=1))
        new = stack.enter_context(own_nats(tmp_path / "three"))
        place = {"cluster": old.address(), "replicas": 1}
        with nodes_on(tmp_path, **place) as nodes:
            append(nodes, b"first")
            assert "close it first" in nodes.ask("move", "--yes").stderr
            close(nodes)
            nodes.stop("b", "c")
            nodes.place(cluster=new.address(), replicas=3)
            nodes.start("b", "c")
            until(lambda: len(nodes.reports()) == 2, "two nodes wait on the new NATS")
            refused = nodes.ask("move", "--yes")
            assert "2 of 3 nodes" in refused.stderr, refused.stderr
            nodes.stop("a")
            nodes.start("a")
            nodes.until("halted", "halted", "halted")
            ask(nodes, "move")
            nodes.until()
            append(nodes, b"second")
            nodes.until_everywhere(b"first", b"second")

            nodes.stop("a")
            nodes.place(**place)
            nodes.start("a")  # with the old options: it stays out
            until(lambda: nodes.reports().get("a"), "it is heard of on the old NATS")
            assert nodes.reports()["a"].role != "leader"


def test_more_replicas_than_there_are_servers_change_nothing(tmp_path: Path) -> None:
    with own_nats(tmp_path / "one", servers=1) as nats:
        place = {"cluster": nats.address(), "replicas": 1}
        with nodes_on(tmp_path, **place) as nodes:
            append(nodes, b"first")
            close(nodes)
            nodes.place(cluster=nats.address(), replicas=3)
            refused = nodes.ask("move", "--yes")
            assert "--replicas 1" in refused.stderr, refused.stderr
            nodes.place(**place)
            nodes.until("halted", "halted", "halted")
            ask(nodes, "move")
            nodes.until()
            append(nodes, b"second")
            nodes.until_everywhere(b"first", b"second")


def test_three_nodes_with_servers_of_their_own_become_five(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    names = dict(zip("abcde", free_ports(5), strict=True))

    def place(nodes: str) -> dict[str, str]:
        peers = ",".join(f"{name}={HOST}:{names[name]}" for name in nodes)
        return {"peers": peers, "cluster_secret_file": str(tmp_path / "secret")}

    nodes = Nodes(tmp_path, "abc", **place("abc"))
    try:
        nodes.ports = {name: names[name] for name in "abc"}
        nodes.start()
        nodes.until()
        append(nodes, b"first")
        close(nodes)
        nodes.stop()
        nodes.ports = names
        nodes.place(**place("abcde"))
        nodes.start()
        until(lambda: len(nodes.reports()) == 5, "five nodes are heard of", within_s=300.0)
        ask(nodes, "move")
        nodes.until()
        append(nodes, b"second")
        nodes.until_everywhere(b"first", b"second")
    finally:
        nodes.stop()
