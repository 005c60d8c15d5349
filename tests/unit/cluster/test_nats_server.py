"""The file that a NATS server is started with. How it runs is seen in tests/integration."""

from __future__ import annotations

from pathlib import Path

from millstream.cluster.nats.access import ClusterTls
from millstream.cluster.nats.server import configuration
from millstream.cluster.peers import derive, parse_peers

PEERS = parse_peers("a=127.0.0.1:20000,b=[::1]:20003")


def test_everything_is_synced_and_listens_where_the_node_is() -> None:
    said = configuration(PEERS[0], PEERS, Path("/data/nats"), secret="")
    assert "sync_interval: always" in said
    assert 'host: "127.0.0.1"' in said
    assert "port: 20001" in said
    assert "port: 20002" in said
    assert "authorization" not in said


def test_addresses_of_the_sixth_version_have_brackets_in_routes_only() -> None:
    said = configuration(PEERS[1], PEERS, Path("/data/nats"), secret="")
    assert 'host: "::1"' in said
    assert '"nats-route://[::1]:20005"' in said


def test_with_a_secret_clients_and_servers_must_show_what_is_derived_from_it() -> None:
    said = configuration(PEERS[0], PEERS, Path("/data/nats"), secret="hush")
    assert said.count(derive("hush", "nats")) == 1
    assert said.count(derive("hush", "routes")) == 1 + len(PEERS)
    assert "hush" not in said


def test_a_folder_with_quotes_stays_one_word() -> None:
    said = configuration(PEERS[0], PEERS, Path('/data/"x"'), secret="")
    assert 'store_dir: "/data/\\"x\\""' in said


def test_a_server_by_itself_waits_for_no_other() -> None:
    assert "routes" not in configuration(PEERS[0], PEERS[:1], Path("/data/nats"), secret="")


def test_with_certificates_clients_and_servers_speak_tls_alone() -> None:
    tls = ClusterTls("cert.pem", "/tls/key.pem", "/tls/ca.pem")
    said = configuration(PEERS[0], PEERS, Path("/data/nats"), secret="hush", tls=tls)
    assert said.count("tls {") == 2
    assert said.count('key_file: "/tls/key.pem"') == 2
    assert f'cert_file: "{Path("cert.pem").absolute()}"' in said
    assert "handshake_first: true" in said
    assert "tls" not in configuration(PEERS[0], PEERS, Path("/data"), secret="", tls=ClusterTls())
