"""A shared log that was closed, and another one that goes on behind it."""

from __future__ import annotations

import pytest

from millstream.cluster import entry as entries
from millstream.cluster.shared_log import Unreachable
from millstream.errors import NotLeader
from tests.unit.cluster.stepping import Group, Stepped


def close(group: Group) -> int:
    """As a visitor does it."""
    log = group.log
    entry = entries.closing(log.last, log.entries[-1])
    assert log.store(entries.encode(entry), log.last)
    return log.last


def started() -> tuple[Group, Stepped, Stepped]:
    group = Group()
    leader = group.node("a").lead()
    leader.put(1)
    follower = group.node("b").follow()
    return group, leader, follower


def stop(*nodes: Stepped) -> None:
    for one in nodes:
        one.follow(5)


def move(group: Group) -> None:
    """Another log, which begins behind the one that was closed."""
    with group.log.changed:
        group.log.first, group.log.entries = group.log.last + 1, []


def test_every_node_stops_behind_the_entry_that_closes_the_log() -> None:
    group, leader, follower = started()
    last = close(group)
    with pytest.raises(NotLeader):
        leader.put(2)
    stop(leader, follower)
    for one in (leader, follower):
        stance = one.node.state()
        assert (stance.role, stance.sequence) == ("halted", last)
        assert "was closed" in stance.reason
        assert one.numbers() == [1]


def test_nothing_follows_in_a_log_that_was_closed_whatever_is_restarted() -> None:
    group, leader, follower = started()
    last = close(group)
    stop(leader, follower)
    again = group.node("b", follower.inner)
    for _ in range(20):
        again.clock.advance(10)
        again.follow()
    assert group.log.last == last
    assert again.role == "halted"


def test_nodes_go_on_by_themselves_once_another_log_begins_behind_their_stores() -> None:
    group, leader, follower = started()
    close(group)
    stop(leader, follower)
    move(group)
    leader.lead().put(2)
    follower.follow(5)
    assert follower.numbers() == [1, 2]
    assert not follower.node.state().reason


def test_a_log_that_was_moved_can_be_moved_again() -> None:
    group, leader, follower = started()
    for number in (2, 3):
        close(group)
        stop(leader, follower)
        assert follower.role == leader.role == "halted"
        move(group)
        leader.lead().put(number)
        follower.follow(5)
    assert follower.numbers() == [1, 2, 3]


def test_between_two_logs_a_node_waits_and_does_not_call_its_log_lost() -> None:
    group, leader, follower = started()
    close(group)
    stop(leader, follower)
    group.log.is_gone = True
    for one in (leader, follower):
        with pytest.raises(Unreachable):
            one.node.step()
    group.log.is_gone = False
    move(group)
    leader.lead().put(2)
    follower.follow(5)
    assert follower.numbers() == [1, 2]


def test_a_commit_in_pieces_that_was_under_way_counts_for_nothing() -> None:
    group, leader, follower = started()
    last = entries.decode(group.log.last, group.log.entries[-1])
    piece = entries.SharedEntry(
        entries.CHUNK,
        last.epoch,
        bytes(entries.ID_BYTES),
        entries.digest(group.log.entries[-1]),
        last.time_ms,
        last.wall_ms,
        b"piece",
    )
    assert group.log.store(entries.encode(piece), group.log.last)
    closed = close(group)
    stop(leader, follower)
    assert follower.node.member.noted.sequence == closed
    assert follower.numbers() == leader.numbers() == [1]


def test_a_node_without_rows_does_not_lead_while_others_have_a_history() -> None:
    group, leader, _ = started()
    leader.follow()
    with group.log.changed:
        group.log.entries = []  # the log is lost, and made anew
    empty = group.node("c")
    for _ in range(20):
        empty.clock.advance(10)
        empty.follow()
    assert empty.role != "leader"
    assert group.log.last == 0
