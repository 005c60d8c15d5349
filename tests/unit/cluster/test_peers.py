"""How the nodes of a cluster are named, and what follows from it."""

from __future__ import annotations

import pytest

from millstream.cluster.peers import Peer, derive, own, parse_peers
from millstream.errors import InvalidInput


def test_a_node_has_a_name_a_host_and_three_ports_in_a_row() -> None:
    a, b = parse_peers("a=host1, b=10.0.0.2:9000")
    assert a == Peer("a", "host1", 8080)
    assert b.address == "http://10.0.0.2:9000"
    assert (b.nats_url, b.nats_port, b.route_port) == ("nats://10.0.0.2:9001", 9001, 9002)


def test_an_address_of_the_sixth_version_stands_in_brackets() -> None:
    a, b = parse_peers("a=[::1],b=[::1]:9000")
    assert (a.host, a.port, b.host, b.port) == ("[::1]", 8080, "[::1]", 9000)
    assert a.is_here_only
    assert b.address == "http://[::1]:9000"


@pytest.mark.parametrize(
    "text", ["", "a", "a=", "=h", "a=h:x", "a=h:0", "a=h:65534", "a b=h", "../a=h", "a=h,,b=i"]
)
def test_what_names_no_node_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_peers(text)


@pytest.mark.parametrize("text", ["a=h,a=i", "a=h,b=h", "a=h:1,b=h:1", "a=h:1,b=h:3"])
def test_two_nodes_have_neither_a_name_nor_a_place_in_common(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_peers(text)


def test_a_node_is_one_of_its_peers() -> None:
    peers = parse_peers("a=h,b=i")
    assert own(peers, "b").host == "i"
    with pytest.raises(InvalidInput, match="a, b"):
        own(peers, "c")


def test_what_is_derived_from_a_secret_differs_by_purpose_and_does_not_show_it() -> None:
    shown = {derive("secret", purpose) for purpose in ("nats", "routes", "nodes")}
    assert len(shown) == 3
    assert not any("secret" in one for one in shown)
    assert derive("secret", "nats") != derive("other", "nats")
