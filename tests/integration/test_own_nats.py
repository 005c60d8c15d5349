"""A cluster on a NATS that the user runs: what it needs, what it survives, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream.cli.cluster_options import ClusterPlace
from millstream.errors import CannotOpen, NoQuorum
from tests.conformance.nats_kit import PATIENCE_S, until
from tests.integration.certificates import make_certificates
from tests.integration.own_nats import Nodes, nodes_on, own_nats

if TYPE_CHECKING:
    from millstream.cluster.membership import Plan

pytestmark = [pytest.mark.requires("nats"), pytest.mark.slow, pytest.mark.timeout(600)]


def use(nodes: Nodes, value: bytes) -> None:
    """Write through any node, and see it in every node's own file."""

    def is_written() -> bool:
        try:
            with millstream.open(nodes.addresses) as ms:
                ms.log("orders").append(value)
        except NoQuorum:  # nothing was stored: servers that have lost one choose who leads
            return False
        return True

    until(is_written, "a node takes the record")

    def is_everywhere() -> bool:
        for name in nodes.ports:
            with millstream.open(nodes.file(name), mode="r") as ms:
                if value not in [one.value for one in ms.log("orders").read()]:
                    return False
        return True

    until(is_everywhere, "every node has the record")


def test_three_nodes_share_a_store_over_three_servers_that_others_run(tmp_path: Path) -> None:
    with own_nats(tmp_path) as nats, nodes_on(tmp_path, cluster=nats.address()) as nodes:
        use(nodes, b"first")
        nodes.stop()
        nodes.start()
        nodes.until()
        use(nodes, b"second")
        with millstream.open(nodes.addresses) as ms:
            assert [one.value for one in ms.log("orders").read()] == [b"first", b"second"]


def test_user_and_password_in_the_address_open_every_server(tmp_path: Path) -> None:
    more = 'authorization { user: ops, password: "p@ss/word" }'
    with own_nats(tmp_path, more=more) as nats:
        with nodes_on(tmp_path, cluster=nats.address(shown="ops:p%40ss%2Fword@")) as nodes:
            use(nodes, b"first")
            nats.lose(0)
            use(nodes, b"second")
        said = refusal(tmp_path, cluster=nats.address(shown="ops:other@"))
        assert "does not let this node in" in said
        assert "other" not in said


def plan(**place: Any) -> Plan:
    """What a node of one server is told."""
    return ClusterPlace(replicas=1, **place).plan("r", "http://127.0.0.1:1")


def found(folder: Path, **place: Any) -> None:
    """Begin a cluster as its first node does, and append to its shared log."""
    from millstream.cluster.membership import Membership

    membership = Membership(folder / f"{len(place)}.db", plan(**place))
    try:
        node = membership.prepare()
        node.start()
        node.wait_readable(PATIENCE_S)
        assert node.state().sequence > 0
    finally:
        membership.stop()


def refusal(folder: Path, **place: Any) -> str:
    """What a new node says that cannot begin."""
    from millstream.cluster.membership import Membership

    with pytest.raises(CannotOpen) as told:
        Membership(folder / "refused.db", plan(**place)).prepare()
    return told.value.message


def test_a_token_in_the_address_opens_a_server(tmp_path: Path) -> None:
    with own_nats(tmp_path, servers=1, more='authorization { token: "s3cret" }') as nats:
        found(tmp_path, cluster=nats.address(shown="s3cret@"))
        assert "does not let this node in" in refusal(tmp_path, cluster=nats.address())


def test_tls_is_spoken_with_an_authority_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.cluster.membership.GIVE_UP_S", 0.0)
    files = make_certificates(tmp_path / "tls")
    served = f'cert_file: "{files.certificate}", key_file: "{files.key}", ca_file: "{files.ca}"'
    with own_nats(tmp_path, servers=1, more=f"tls {{ {served}, verify: true }}") as nats:
        place = nats.address(scheme="tls")
        own = {"cluster_certificate": str(files.certificate), "cluster_key": str(files.key)}
        found(tmp_path, cluster=place, cluster_ca=str(files.ca), **own)
        assert "certificate" in refusal(tmp_path, cluster=place)
        assert "certificate" in refusal(tmp_path, cluster=place, cluster_ca=str(files.ca))


def test_a_nats_without_jetstream_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.cluster.membership.GIVE_UP_S", 0.0)
    with own_nats(tmp_path, servers=1, jetstream="") as nats:
        assert "is JetStream on?" in refusal(tmp_path, cluster=nats.address())


def test_an_account_without_jetstream_is_refused(tmp_path: Path) -> None:
    accounts = 'accounts: { A: { users: [ { user: ops, password: "word" } ] } }'
    with own_nats(tmp_path, servers=1, more=accounts) as nats:
        said = refusal(tmp_path, cluster=nats.address(shown="ops:word@"))
    assert "JetStream is off for this user's account" in said


def test_more_replicas_than_servers_are_refused(tmp_path: Path) -> None:
    from millstream.cluster.membership import Membership

    with own_nats(tmp_path, servers=1) as nats:
        place = ClusterPlace(cluster=nats.address()).plan("r", "http://127.0.0.1:1")
        with pytest.raises(CannotOpen, match="--replicas 1"):
            Membership(tmp_path / "refused.db", place).prepare()


def test_tls_that_was_asked_for_is_not_left_out(tmp_path: Path) -> None:
    with own_nats(tmp_path, servers=1) as nats:
        assert "speaks plainly" in refusal(tmp_path, cluster=nats.address(scheme="tls"))


def test_a_user_without_permission_is_told_which_it_needs(tmp_path: Path) -> None:
    who = 'user: ops, password: "word", permissions: { publish: "orders", subscribe: ">" }'
    with own_nats(tmp_path, servers=1, more=f"authorization {{ users: [ {{ {who} }} ] }}") as nats:
        assert "$JS.API.>" in refusal(tmp_path, cluster=nats.address(shown="ops:word@"))


def test_messages_that_are_too_small_are_refused(tmp_path: Path) -> None:
    with own_nats(tmp_path, servers=1, more="max_payload: 64KB") as nats:
        assert "max_payload" in refusal(tmp_path, cluster=nats.address())
