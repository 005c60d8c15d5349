"""NATS servers of nodes with certificates: traffic is encrypted, and strangers are kept out."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.nats_kit import SECRET, Servers, three_servers, until
from tests.integration.certificates import Certificates, make_certificates

pytestmark = [pytest.mark.requires("nats"), pytest.mark.slow]

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nats")


@pytest.fixture(scope="module")
def servers(logs: Path, files: Certificates) -> Iterator[Servers]:
    from millstream.cluster.nats.access import ClusterTls

    with three_servers(logs, tls=ClusterTls(*map(str, files))) as started:
        yield started


def test_nodes_with_certificates_share_a_log(servers: Servers) -> None:
    from millstream.cluster.nats.jetstream import JetStreamLog

    log = JetStreamLog(servers.line(), "encrypted")
    try:
        log.found(timeout_s=WITHIN_S)
        assert log.append(b"first", after=0, timeout_s=WITHIN_S) == 1
    finally:
        log.close()


def test_neither_clients_nor_servers_are_told_anything_plainly(servers: Servers) -> None:
    me = servers.all[0].me
    with socket.create_connection((me.host, me.nats_port), WITHIN_S) as line:
        line.sendall(b"CONNECT {}\r\nPING\r\n")
        assert not line.recv(4096).startswith((b"INFO", b"PONG"))


@pytest.mark.parametrize("what", ["no authority", "another authority"])
def test_a_client_that_does_not_know_the_authority_does_not_connect(
    servers: Servers, tmp_path: Path, what: str
) -> None:
    from millstream.cluster.nats.access import ClusterTls
    from millstream.cluster.nats.jetstream import JetStreamLog
    from millstream.cluster.shared_log import Unreachable

    other = ClusterTls(ca=str(make_certificates(tmp_path).ca))
    line = Servers(servers.all, ClusterTls() if what == "no authority" else other).line()
    try:
        until(lambda: "certificate" in line.trouble, "the server is not trusted")
        with pytest.raises(Unreachable):
            JetStreamLog(line, "refused").found(timeout_s=1.0)
    finally:
        line.close()


_names = itertools.count(1)


@pytest.mark.parametrize("has_certificate", [False, True])
def test_a_server_without_a_certificate_of_the_cluster_does_not_join_it(
    servers: Servers, logs: Path, tmp_path: Path, has_certificate: bool
) -> None:
    from millstream.cluster.nats.access import ClusterTls
    from millstream.cluster.nats.server import NatsServer
    from millstream.cluster.peers import Peer
    from millstream.cluster.trial import HOST, free_ports

    tls = ClusterTls(*map(str, make_certificates(tmp_path))) if has_certificate else None
    stranger = Peer(f"stranger{next(_names)}", HOST, free_ports(1)[0])
    peers = [stranger, *(one.me for one in servers.all)]
    server = NatsServer(stranger, peers, tmp_path / "nats", secret=SECRET, tls=tls)
    before = _refused(logs)
    try:
        server.start()
        until(lambda: _refused(logs) > before, "its routes are refused")
        assert _refused(logs) > before
    finally:
        server.stop()


def _refused(folder: Path) -> int:
    """How often the servers of the cluster have refused another one."""
    said = (file.read_text() for file in folder.glob("*/nats.log"))
    return sum(text.count("TLS route handshake error") for text in said)
