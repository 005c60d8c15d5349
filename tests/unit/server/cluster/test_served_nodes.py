"""Three nodes that elect their leader: any of them is asked, and one of them is lost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream import Producer, topology
from millstream.errors import MillstreamError
from tests.unit.server.cluster.electing import KEY, ServedNodes, serving_nodes


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ServedNodes]:
    with serving_nodes(tmp_path, "a", "b", "c") as found:
        yield found


def test_any_node_takes_any_command_and_all_of_them_know(nodes: ServedNodes) -> None:
    for number, url in enumerate(nodes.urls):
        with millstream.open(url) as ms:
            assert ms.log("a").append(b"%d" % number) == number
    for url in nodes.urls:
        with millstream.open(url, read_level="eventual") as ms:
            assert ms.log("a").wait(2, timeout=30)
            assert [one.value for one in ms.log("a").read()] == [b"0", b"1", b"2"]
            assert ms.log("a").offset_at(timedelta(hours=1)) == 0
            assert ms.log("a")[-1].value == b"2"
        found = httpx.get(f"{url}/logs/a/records", timeout=30)
        assert len(found.json()["records"]) == 3


def test_a_strong_read_sees_what_was_written_at_any_node(nodes: ServedNodes) -> None:
    first, second, third = (millstream.open(url) for url in nodes.urls)
    with first, second, third:
        for number in range(10):
            first.log("a").append(b"x")
            assert len(second.log("a")) == len(third.log("a")) == number + 1


def test_clients_go_on_when_the_leading_node_is_lost(nodes: ServedNodes) -> None:
    with millstream.open(nodes.urls) as ms:
        queue = ms.create_queue("q")
        queue.put(b"0")
        held = queue.claim(1)
        for number in range(3):
            ms.log("a").append(b"%d" % number, producer=Producer("p", number))
        nodes.stop(nodes.leader())
        for number in range(3, 6):
            assert ms.log("a").append(b"%d" % number, producer=Producer("p", number)) == number
        assert [one.value for one in ms.log("a").read()] == [b"%d" % i for i in range(6)]
        queue.ack(held)
        assert queue.info().done == 1


def test_a_client_of_one_follower_outlives_the_leading_node(nodes: ServedNodes) -> None:
    follower = nodes.followers()[0]
    with millstream.open(nodes.url(follower)) as ms:
        ms.log("a").append(b"0")
        nodes.stop(nodes.leader())
        assert ms.log("a").append(b"1", producer=Producer("p", 0)) == 1
        assert len(ms.log("a")) == 2


def test_a_new_node_takes_a_copy_and_goes_on_from_there(nodes: ServedNodes) -> None:
    leader = nodes.leader()
    nodes.stop("c" if leader != "c" else "b")
    gone = next(name for name in "abc" if name not in nodes.servers)
    with millstream.open(nodes.urls) as ms:
        log = ms.log("a")
        log.append_many([b"x" * 1_000] * 6_000)
        ms.fold()
        nodes.log.trim(nodes.nodes[leader].state().sequence)
        for ending in ("", "-wal", "-shm"):
            (nodes.folder / f"{gone}.db{ending}").unlink(missing_ok=True)
        nodes.start(gone)
        log.append(b"after")
    assert nodes.nodes[gone].state().snapshots >= 1
    assert nodes.fetchers[gone].fetched_bytes > 4 * 1024 * 1024
    with millstream.open(nodes.url(gone), read_level="eventual") as ms:
        assert ms.log("a").wait(6_000, timeout=30)
        assert ms.log("a").get(6_000).value == b"after"
        assert ms.log("a").get(5_999).value == b"x" * 1_000


def test_only_nodes_may_fetch_a_copy(nodes: ServedNodes) -> None:
    url = nodes.urls[0]
    refused = httpx.get(f"{url}/cluster/snapshot", timeout=30)
    assert (refused.status_code, refused.json()["title"]) == (403, "Denied")
    bearer = {"authorization": f"Bearer {KEY}"}
    offer = httpx.get(f"{url}/cluster/snapshot", headers=bearer, timeout=30).json()
    assert offer["size"] > 0
    query = {"copy": offer["copy"], "chunk": "9"}
    beyond = httpx.get(f"{url}/cluster/snapshot", params=query, headers=bearer, timeout=30)
    assert beyond.status_code == 416
    query["copy"] = "other"
    gone = httpx.get(f"{url}/cluster/snapshot", params=query, headers=bearer, timeout=30)
    assert gone.status_code == 404


def test_every_node_says_how_the_cluster_stands(nodes: ServedNodes) -> None:
    leader = nodes.leader()
    nodes.until(lambda: len(nodes.bulletin.reports()) == 3)
    for name, server in nodes.servers.items():
        told = httpx.get(f"{server.url}/cluster/status", timeout=30).json()
        assert told["node"] == name
        assert told["leader"] == leader
        assert told["leader_address"] == nodes.url(leader)
        assert {one["node"] for one in told["nodes"]} == {"a", "b", "c"}
        assert told["epoch"] >= 1
    lines = httpx.get(f"{nodes.url(leader)}/metrics", timeout=30).text
    for what in ("lag", "epoch", "leads", "elections", "replays", "snapshots", "barrier_seconds"):
        assert f"millstream_cluster_{what}" in lines, what


def test_a_server_alone_has_no_cluster(tmp_path: Path) -> None:
    from millstream.server.serving import running
    from millstream.server.settings import Settings

    with running(tmp_path / "a.db", Settings(port=0)) as server:
        found = httpx.get(f"{server.url}/cluster/status", timeout=30)
        assert found.status_code == 404
        assert "millstream_cluster" not in httpx.get(f"{server.url}/metrics", timeout=30).text


def test_nodes_that_have_halted_answer_eventual_reads_and_nothing_else(
    nodes: ServedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with millstream.open(nodes.urls) as ms:
        ms.log("a").append(b"0")
    for url in nodes.urls:
        with millstream.open(url, read_level="eventual") as ms:
            assert ms.log("a").wait(0, timeout=30)
    monkeypatch.setattr("millstream.server.cluster.forwarder.FORWARD_S", 0.1)
    monkeypatch.setattr("millstream.server.core.FORWARD_S", 0.1)
    for node in nodes.nodes.values():
        node.member.halt("the test says so")
    seats = [nodes.core(name).seat for name in nodes.nodes]
    nodes.until(lambda: all(seat.stance.role == "halted" for seat in seats))
    for url in nodes.urls:
        with millstream.open(url, read_level="eventual") as ms:
            assert [one.value for one in ms.log("a").read()] == [b"0"]
    for level in ("strong", "bounded:60"):
        with (
            pytest.raises(MillstreamError, match="the test says so"),
            millstream.open(nodes.urls[0], read_level=level, retry_for=0.1) as ms,
        ):
            ms.log("a").info()


def test_a_topology_is_applied_at_any_node(nodes: ServedNodes) -> None:
    wanted: dict[str, Any] = {
        "logs": {"orders": {"partitions": 2}},
        "queues": {"mail": {"sources": ["orders"]}},
        "schedules": {"nightly": {"task": "shop:report", "every": "1h"}},
    }
    first, second, third = (millstream.open(url) for url in nodes.urls)
    with first, second, third:
        assert len(topology.apply(second, wanted).plan.changes) == 3
        assert topology.apply(third, wanted).plan.changes == []
        dumped = [topology.dump(ms, leave_out=lambda *_: None) for ms in (first, third)]
        assert dumped[0] == dumped[1]
