"""Nodes with certificates of a private authority: what they ask each other, and clients, is HTTPS."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import millstream
from millstream.cluster.trial import HOST
from millstream.errors import MillstreamError
from tests.conformance.nats_kit import until
from tests.integration.certificates import Certificates, make_certificates
from tests.integration.own_nats import Nodes

pytestmark = [
    pytest.mark.requires("nats"),
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(900),
]


class Encrypted(NamedTuple):
    """Three nodes, and the files that they were given."""

    nodes: Nodes
    files: Certificates

    @property
    def ca(self) -> str:
        return str(self.files.ca)

    def ask(self, name: str, path: str, data: bytes | None = None) -> Any:
        """A request over HTTPS to one node."""
        trusting = ssl.create_default_context(cafile=self.files.ca)
        asked = urllib.request.Request(self.nodes.address(name) + path, data)
        with urllib.request.urlopen(asked, context=trusting, timeout=60.0) as answer:
            return json.loads(answer.read())

    def leader(self) -> str:
        return next(name for name, one in self.nodes.reports().items() if one.role == "leader")

    def followers(self) -> list[str]:
        leader = self.leader()
        return [name for name in self.nodes.ports if name != leader]


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    folder = tmp_path_factory.mktemp("https")
    files = make_certificates(folder / "tls")
    (folder / "secret").write_text("hush\n")
    shown = {
        "cluster_secret_file": str(folder / "secret"),
        "cluster_certificate": str(files.certificate),
        "cluster_key": str(files.key),
        "cluster_ca": str(files.ca),
    }
    nodes = Nodes(folder, cluster=f"nats://{HOST}:1")
    peers = ",".join(f"{name}={HOST}:{port}" for name, port in nodes.ports.items())
    nodes.place(peers=peers, **shown)
    nodes.serving = ["--certificate", str(files.certificate), "--key", str(files.key)]
    try:
        nodes.start()
        nodes.until()
        yield Encrypted(nodes, files)
    finally:
        nodes.stop()


def test_any_node_hands_commands_on_to_the_leader(encrypted: Encrypted) -> None:
    for name in encrypted.nodes.ports:
        with millstream.open(encrypted.nodes.address(name), ca=encrypted.ca) as ms:
            ms.log("commands").append(name.encode())
            queue = ms.create_queue(f"jobs-{name}")
            queue.put(b"job")
            assert queue.claim()[0].value == b"job"
            assert name.encode() in [one.value for one in ms.log("commands").read()]


def test_any_node_hands_requests_on_to_the_leader(encrypted: Encrypted) -> None:
    for name in encrypted.nodes.ports:
        encrypted.ask(name, "/logs/requests/records", name.encode())
    assert len(encrypted.ask("a", "/logs/requests/records")["records"]) == 3


def test_a_node_takes_a_copy_from_another(encrypted: Encrypted) -> None:
    from millstream.cluster.admin import ClusterAdmin

    nodes = encrypted.nodes
    with millstream.open(nodes.addresses, ca=encrypted.ca) as ms:
        ms.log("copied").append(b"first")
    late = encrypted.followers()[0]
    nodes.stop(late)
    for file in nodes.file(late).parent.glob(f"{late}.db*"):
        if file.is_file():
            file.unlink()
    with ClusterAdmin(nodes.plan) as visit:
        held = visit.held()
        assert held is not None
        visit.log.trim(held.last, timeout_s=60.0)
    nodes.start(late)
    nodes.until()
    assert encrypted.ask(late, "/cluster/status")["snapshots"] >= 1
    with millstream.open(nodes.file(late), mode="r") as ms:
        assert [one.value for one in ms.log("copied").read()] == [b"first"]


def test_a_client_of_several_nodes_follows_the_leader(encrypted: Encrypted) -> None:
    nodes = encrypted.nodes
    with millstream.open(nodes.addresses, ca=encrypted.ca, retry_for=60.0) as ms:
        ms.log("followed").append(b"first")
        lost = encrypted.leader()
        nodes.stop(lost)

        def is_appended() -> bool:
            try:
                return ms.log("followed").append(b"second") > 0
            except MillstreamError:
                return False

        until(is_appended, "another node takes the record")
        assert encrypted.leader() != lost
        assert [one.value for one in ms.log("followed").read()][:2] == [b"first", b"second"]
    nodes.start(lost)
    nodes.until()


def test_a_client_that_does_not_know_the_authority_is_told_so(encrypted: Encrypted) -> None:
    with pytest.raises(MillstreamError, match="certificate"):
        millstream.open(encrypted.nodes.address("a"), retry_for=0.0)


def test_commands_about_the_cluster_want_the_authority_once(encrypted: Encrypted) -> None:
    nodes = encrypted.nodes
    by_itself = nodes.options.index("--cluster-certificate")
    del nodes.options[by_itself : by_itself + 4]  # and the key: commands have no certificate
    told = json.loads(nodes.ask("status").stdout)
    assert sorted(one["role"] for one in told["nodes"]) == ["follower", "follower", "leader"]
    assert all(one["address"].startswith("https://") for one in told["nodes"])
    made = nodes.ask("token", "ops", "--allow", "*:admin")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["token"]
