"""Three nodes: one writes, all have the same rows, and another takes over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.embedded.session import open_file
from millstream.engine.protocol import WouldWait
from millstream.errors import CannotOpen, NotLeader
from tests.unit.cluster.trio import STEADY, Trio


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    with Trio(tmp_path, STEADY) as found:
        yield found.start("a", "b", "c")


def test_what_the_leader_commits_is_in_the_rows_of_every_node(trio: Trio) -> None:
    leader = trio.leader()
    for number in range(20):
        leader.ms.log("orders").append({"number": number})
    leader.ms.queue("work", sources=["orders"], start="earliest")
    held = leader.ms.queue("work").claim(5)
    leader.ms.queue("work").ack(held[:2])
    leader.ms.fold()

    rows = trio.settle()

    assert len(rows) == 3
    for one in trio.followers():
        assert [record.json()["number"] for record in one.ms.log("orders").read()] == list(
            range(20)
        )


def test_a_node_that_does_not_lead_refuses_to_write_and_names_the_leader(trio: Trio) -> None:
    leader = trio.leader()
    leader.ms.log("orders").append(b"x")
    trio.settle()

    follower = trio.followers()[0]
    before = follower.rows()
    with pytest.raises(NotLeader) as refused:
        follower.ms.log("orders").append(b"y")

    assert refused.value.leader == leader.node.address
    assert follower.rows() == before


def test_when_the_leader_is_gone_another_node_goes_on_with_all_that_was_acknowledged(
    trio: Trio,
) -> None:
    first = trio.leader()
    for number in range(5):
        first.ms.log("orders").append(str(number).encode())
    epoch = first.node.state().epoch
    trio.stop(first.name)

    second = trio.leader()
    second.ms.log("orders").append(b"5")
    trio.start(first.name)
    trio.settle()

    assert second.node.state().epoch > epoch
    for one in trio.machines.values():
        assert [record.value for record in one.ms.log("orders").read()] == [
            str(number).encode() for number in range(6)
        ]


def test_a_reader_that_waits_on_a_follower_is_woken_by_what_the_leader_writes(trio: Trio) -> None:
    leader = trio.leader()
    log = leader.ms.log("news")
    log.append(b"one")
    follower = trio.followers()[0]
    trio.settle()
    tail = follower.ms.log("news").tail(start=1)

    log.append(b"two")

    assert next(iter(tail)).value == b"two"


def test_the_file_of_a_node_is_opened_to_read_alone(trio: Trio) -> None:
    leader = trio.leader()
    leader.ms.log("orders").append(b"x")
    trio.stop(leader.name)

    with pytest.raises(CannotOpen, match="node of a cluster"):
        open_file(leader.path)
    open_file(leader.path, mode="r").close()


def test_a_leader_that_stops_says_so_and_another_takes_over_without_a_silence(
    tmp_path: Path,
) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a")
        trio.leader().ms.log("orders").append(b"0")
        trio.start("b")
        trio.settle()

        trio.stop("a")

        assert trio.leader().name == "b"


def test_an_event_loop_never_waits_for_the_cluster_itself(trio: Trio) -> None:
    leader = trio.leader()
    leader.ms.log("orders").append(b"0")
    with pytest.raises(WouldWait), leader.engine.write(waits=False):
        pass


def test_a_node_that_begins_to_lead_does_the_upkeep(tmp_path: Path) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a")
        first = trio.leader()
        first.ms.log("orders").append(b"0")
        trio.start("b")
        trio.settle()
        second = trio.machines["b"]
        woken: list[str] = []
        assert second.store.seq > 0
        second.engine.on_upkeep_due = lambda: woken.append(second.node.state().role)

        trio.stop("a")
        trio.until(lambda: bool(woken))

        assert woken == ["leader"]
