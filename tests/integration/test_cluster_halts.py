"""Real NATS servers lose their stream for a while: nodes halt, and go on once it is back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import millstream
from tests.conformance.nats_kit import until
from tests.integration.own_nats import Nodes, OwnNats, nodes_on, own_nats

pytestmark = [
    pytest.mark.requires("nats"),
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(900),
]


def asked(nodes: Nodes) -> Any:
    done = nodes.ask("status")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def status(nodes: Nodes) -> dict[str, Any]:
    return {one["node"]: one for one in asked(nodes)["nodes"]}


def set_aside(nats: OwnNats, ending: str) -> None:
    for number in range(len(nats.ports)):
        nats.files(number).rename(nats.files(number).with_suffix(ending))


def put_back(nats: OwnNats, ending: str) -> None:
    for number in range(len(nats.ports)):
        shutil.rmtree(nats.files(number), ignore_errors=True)
        shutil.copytree(nats.files(number).with_suffix(ending), nats.files(number))


def test_nodes_go_on_by_themselves_once_servers_have_the_disks_that_they_had(
    tmp_path: Path,
) -> None:
    with own_nats(tmp_path) as nats, nodes_on(tmp_path, cluster=nats.address()) as nodes:
        nodes.append(b"first")
        nodes.until_everywhere(b"first")
        nats.stop()
        set_aside(nats, ".early")
        put_back(nats, ".early")
        nats.start()
        nodes.until()
        nodes.append(b"second")
        nodes.until_everywhere(b"first", b"second")

        nats.stop()
        set_aside(nats, ".late")
        nats.start()  # without a stream at all
        nodes.until("halted", "halted", "halted")
        assert all("is gone" in one["reason"] for one in status(nodes).values())
        until(lambda: asked(nodes)["state"] == "halted", "all of it has halted")

        nats.stop()
        put_back(nats, ".early")  # a stream that lacks what nodes have
        nats.start()
        until(
            lambda: nats_is_led(nodes) and all_are(nodes, "halted"),
            "nodes see the shorter stream, and stay as they are",
        )

        nats.stop()
        put_back(nats, ".late")
        nats.start()
        nodes.until()
        assert all("is gone" in one["resumed"] for one in status(nodes).values())
        nodes.append(b"third")
        nodes.until_everywhere(b"first", b"second", b"third")


def test_too_few_servers_are_no_reason_to_halt_and_the_cluster_says_so(tmp_path: Path) -> None:
    with own_nats(tmp_path) as nats, nodes_on(tmp_path, cluster=nats.address()) as nodes:
        nodes.append(b"first")
        until(lambda: asked(nodes)["state"] == "healthy", "all is well")
        nats.lose(0)
        nats.lose(1)
        until(lambda: asked(nodes)["state"] == "no quorum", "too few servers answer")
        assert not any(one["role"] == "halted" for one in status(nodes).values())
        with millstream.open(nodes.addresses, read_level="eventual") as ms:
            assert [one.value for one in ms.log("orders").read()] == [b"first"]

        nats.stop()
        nats.start()
        nodes.until()
        until(lambda: asked(nodes)["state"] == "healthy", "all is well again")
        nodes.append(b"second")
        nodes.until_everywhere(b"first", b"second")


def nats_is_led(nodes: Nodes) -> bool:
    from millstream.cluster.admin import ClusterAdmin

    with ClusterAdmin(nodes.plan) as visit:
        return visit.held() is not None


def all_are(nodes: Nodes, role: str) -> bool:
    reports = nodes.reports()
    return len(reports) == len(nodes.ports) and {one.role for one in reports.values()} == {role}
