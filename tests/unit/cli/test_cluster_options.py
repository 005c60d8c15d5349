"""What a server is told about its cluster, and what is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from millstream.cli.cluster_options import SECRET, NodePlace
from millstream.cluster.nats.access import ClusterTls
from millstream.errors import CannotOpen, InvalidInput
from millstream.server.settings import Settings

HERE = "a=127.0.0.1:20000,b=127.0.0.1:20003,c=127.0.0.1:20006"
APART = "a=host1,b=host2,c=host3"


@pytest.fixture(autouse=True)
def no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)


def test_a_server_without_these_options_is_no_node() -> None:
    place = NodePlace()
    settings = place.settings(None, {})
    assert settings.port == 8080
    assert place.node_plan(settings) is None


def test_pages_of_the_other_nodes_may_connect() -> None:
    place = NodePlace("a=h1,b=h2:9000", node="b")
    assert place.settings(None, {}).origins == ("http://h1:8080",)
    given = {"origins": ["https://example.org"], "certificate": "c.pem", "key": "k.pem"}
    assert place.settings(None, given).origins == ("https://example.org", "https://h1:8080")


def test_a_node_listens_where_it_is_named() -> None:
    place = NodePlace(peers=HERE, node="b")
    settings = place.settings(None, {})
    assert (settings.host, settings.port) == ("127.0.0.1", 20003)
    plan = place.node_plan(settings)
    assert plan is not None
    assert (plan.address, plan.members, plan.replicas) == ("http://127.0.0.1:20003", 3, 3)
    with pytest.raises(typer.BadParameter, match="20003"):
        place.settings(1, {})


@pytest.mark.parametrize("place", [NodePlace(node="a"), NodePlace(peers=HERE)])
def test_a_node_has_a_name_and_a_cluster(place: NodePlace) -> None:
    with pytest.raises(typer.BadParameter, match="--node NAME"):
        place.node_plan(Settings())


def test_nodes_on_several_machines_have_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = NodePlace(peers=APART, node="a")
    settings = place.settings(None, {})
    with pytest.raises(typer.BadParameter, match="--cluster-secret-file"):
        place.node_plan(settings)
    monkeypatch.setenv(SECRET, "hush")
    plan = place.node_plan(settings)
    assert plan is not None
    assert "hush" not in plan.node_key
    file = tmp_path / "secret"
    file.write_text("\n")
    with pytest.raises(CannotOpen, match="empty"):
        NodePlace(peers=APART, node="a", cluster_secret_file=file).node_plan(settings)
    file.write_text("hush\n")
    named = NodePlace(peers=APART, node="a", cluster_secret_file=file).node_plan(settings)
    assert named is not None
    assert named.node_key == plan.node_key


def test_with_a_certificate_nodes_are_reached_by_tls() -> None:
    place = NodePlace(peers=HERE, node="a")
    plan = place.node_plan(place.settings(None, {"certificate": "c.pem", "key": "k.pem"}))
    assert plan is not None
    assert plan.address == "https://127.0.0.1:20000"


def test_a_nats_of_others_is_named_by_its_addresses() -> None:
    place = NodePlace(cluster="nats://n1:4222, nats://n2:4222", node="a", members=5)
    plan = place.node_plan(place.settings(9000, {}))
    assert plan is not None
    assert plan.access().servers == ("nats://n1:4222", "nats://n2:4222")
    assert (plan.address, plan.members) == ("http://127.0.0.1:9000", 5)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 0), ("0.0.0.0", 9000), ("::", 9000)])
def test_a_node_on_a_nats_of_others_says_where_it_is(
    host: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET, "hush")
    settings = Settings(host=host, port=port)
    with pytest.raises(typer.BadParameter, match="--address http://HOST:PORT"):
        NodePlace(cluster="nats://n1", node="a").node_plan(settings)
    plan = NodePlace(cluster="nats://n1", node="a", address="http://h1:9000").node_plan(settings)
    assert plan is not None
    assert plan.address == "http://h1:9000"


def test_files_of_tls_are_for_the_traffic_with_nats() -> None:
    files = {"cluster_certificate": "c.pem", "cluster_key": "k.pem", "cluster_ca": "ca.pem"}
    place = NodePlace(peers=HERE, node="a", **files)  # type: ignore[arg-type]
    plan = place.node_plan(place.settings(None, {}))
    assert plan is not None
    assert plan.access().tls == plan.tls == ClusterTls("c.pem", "k.pem", "ca.pem")
    half = NodePlace(peers=HERE, node="a", cluster_ca="ca.pem").node_plan(Settings())
    assert half is not None
    with pytest.raises(InvalidInput, match="--cluster-certificate"):
        half.check()


def test_only_commits_that_leave_the_machine_unencrypted_are_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SECRET, "hush")
    files = {"cluster_certificate": "c.pem", "cluster_key": "k.pem", "cluster_ca": "ca.pem"}
    assert NodePlace(peers=APART, node="a").plan("a").is_open
    assert not NodePlace(peers=HERE, node="a").plan("a").is_open
    assert not NodePlace(peers=APART, node="a", **files).plan("a").is_open  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "place",
    [
        NodePlace(peers="a=127.0.0.1:20000,b=127.0.0.1:20003", node="a"),
        NodePlace(cluster="nats://n1:4222", node="a/b"),
        NodePlace(cluster="nats://n1:4222", node="a", replicas=2),
        NodePlace(cluster="nats://n1:4222", node="a", cluster_name="x.y"),
    ],
)
def test_what_cannot_be_a_cluster_is_refused(place: NodePlace) -> None:
    plan = place.node_plan(Settings())
    assert plan is not None
    with pytest.raises(InvalidInput):
        plan.check()
