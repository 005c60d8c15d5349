"""The addresses of a client: how they are written, and which is dialed next."""

from __future__ import annotations

import pytest

import millstream
from millstream.cluster.read_level import ReadLevel, parse_read_level
from millstream.engine.place import one_place
from millstream.errors import CannotOpen, InvalidInput
from millstream.remote.nodes import parse_nodes

THREE = "http://a:1,b:2, http://c:3/"


def test_addresses_are_written_with_commas_and_share_the_scheme() -> None:
    nodes = parse_nodes(THREE)
    assert nodes.every_shown == "http://a:1, http://b:2, http://c:3"
    assert nodes.shown == "http://a:1"


def test_a_list_of_addresses_is_one_place() -> None:
    assert one_place(["http://a:1", "http://b:2"]) == "http://a:1,http://b:2"
    assert one_place("shop.db") == "shop.db"
    for wrong in ([], ["shop.db", "http://a"], [3]):
        with pytest.raises(InvalidInput, match="nodes of a cluster"):
            one_place(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://a,http://b", "in the open"),
        ("http://a:1,http://a:1/", "named twice"),
        ("http://a,", "no host"),
        ("http://a,http://user@b", "no user or token"),
        ("http://" + ",".join(f"n{i}" for i in range(17)), "up to 16"),
    ],
)
def test_addresses_that_cannot_be_are_refused(url: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse_nodes(url)


def test_each_is_dialed_in_turn() -> None:
    nodes = parse_nodes(THREE)
    seen = []
    for _ in range(4):
        seen.append(nodes.shown)
        nodes.pass_on()
    assert seen == ["http://a:1", "http://b:2", "http://c:3", "http://a:1"]
    assert [nodes.round_of(attempt) for attempt in range(7)] == [0, 0, 0, 1, 1, 1, 2]


def test_one_of_several_that_does_not_answer_is_given_little_time_in_the_first_round() -> None:
    nodes = parse_nodes(THREE)
    assert [nodes.timeout_s(30.0, attempt) for attempt in range(4)] == [2.0, 2.0, 2.0, 10.0]
    assert nodes.timeout_s(3.0, 0) == 1.0
    assert parse_nodes("http://a:1").timeout_s(30.0, 0) == 30.0


def test_a_client_of_several_notices_sooner_that_its_node_is_silent() -> None:
    assert parse_nodes(THREE).current.ping_s == 1.75
    assert parse_nodes("http://a:1").current.ping_s == 20.0


def test_a_client_goes_only_to_addresses_that_it_was_given() -> None:
    nodes = parse_nodes(THREE)
    assert nodes.leading("http://elsewhere:1") is None
    assert nodes.leading("") is None
    assert nodes.leading("http://a:1") is None, "it is there"
    found = nodes.leading("http://c:3")
    assert found is not None
    nodes.go_to(found)
    assert nodes.shown == "http://c:3"


def test_a_client_that_reads_at_any_node_stays() -> None:
    nodes = parse_nodes(THREE, read_level="eventual")
    assert nodes.leading("http://c:3") is None
    assert nodes.current.headers() == {"millstream-read": "eventual"}


def test_read_levels() -> None:
    assert parse_read_level("strong") == ReadLevel()
    assert parse_read_level(" Bounded:2.5 ") == ReadLevel("bounded", 2.5)
    assert str(parse_read_level("bounded:2.5")) == "bounded:2.5"
    assert str(parse_read_level("eventual")) == "eventual"
    for wrong in ("", "weak", "bounded", "bounded:-1", "bounded:nan", "bounded:1e9", "strong:1"):
        with pytest.raises(InvalidInput, match="read level"):
            parse_read_level(wrong)


def test_a_file_has_no_read_level() -> None:
    with pytest.raises(InvalidInput, match="read_level"):
        millstream.open(":memory:", read_level="eventual")


@pytest.mark.requires("client")
def test_if_no_node_answers_all_are_named() -> None:
    with pytest.raises(CannotOpen, match=r"none of http://127.0.0.1:1, http://127.0.0.1:2"):
        millstream.open(["http://127.0.0.1:1", "http://127.0.0.1:2"])
