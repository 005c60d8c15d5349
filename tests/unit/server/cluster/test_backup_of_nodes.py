"""The backup of a cluster: from any node's address, from a node's own server, and from its file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream import doctor
from millstream.backup.place import BackupPlace
from millstream.backup.restore import restore
from millstream.backup.run import add_point, back_up
from millstream.backup.source import source_of
from millstream.clock import SystemClock
from millstream.remote.backup import ServerStore, back_up_server
from tests.unit.server.cluster.electing import ServedNodes, serving_nodes

RECORDS = 20


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ServedNodes]:
    with serving_nodes(tmp_path, "a", "b", "c") as found:
        with millstream.open(found.urls) as ms:
            for number in range(RECORDS):
                ms.log("x").append(b"%d" % number)
        yield found


def check_restored(place: Path, target: Path) -> None:
    restore(place, target)
    assert doctor.examine(target).healthy
    with millstream.open(target, mode="r") as ms:
        assert [record.value for record in ms.log("x").read()] == [
            b"%d" % number for number in range(RECORDS)
        ]


def test_the_leading_node_answers_for_a_follower(nodes: ServedNodes, tmp_path: Path) -> None:
    follower = nodes.followers()[0]
    back_up_server(ServerStore(nodes.url(follower)), str(tmp_path / "backup"))
    check_restored(tmp_path / "backup", tmp_path / "restored.db")


def test_a_client_with_all_addresses_skips_a_lost_node(nodes: ServedNodes, tmp_path: Path) -> None:
    urls = ",".join(nodes.urls)
    nodes.stop(nodes.followers()[0])
    nodes.leader()
    back_up_server(ServerStore(urls), str(tmp_path / "backup"))
    check_restored(tmp_path / "backup", tmp_path / "restored.db")


def test_a_node_backs_up_the_pages_of_its_own_file(nodes: ServedNodes, tmp_path: Path) -> None:
    engine = nodes.core(nodes.leader()).store.engine
    assert "pages" in engine.abilities  # a copy of rows would lack the application's tables
    add_point(
        BackupPlace(tmp_path / "backup"),
        source_of(engine, place=engine.place),
        keep=None,
        compress=None,
        heard=lambda _stage, _done, _total: None,
        clock=SystemClock(),
    )
    check_restored(tmp_path / "backup", tmp_path / "restored.db")


def test_the_file_of_a_running_node_is_backed_up(nodes: ServedNodes, tmp_path: Path) -> None:
    back_up(tmp_path / f"{nodes.leader()}.db", tmp_path / "backup")
    check_restored(tmp_path / "backup", tmp_path / "restored.db")
