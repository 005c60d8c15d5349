"""A node that halted because its log was gone or too short goes on, if the log proves to be the same."""

from __future__ import annotations

import itertools
import logging

import pytest

from millstream.cluster import entry as entries
from millstream.cluster.shared_log import Unreachable
from millstream.engine.memory.engine import MemoryEngine
from millstream.errors import MillstreamError, NotLeader
from tests.unit.cluster.stepping import SETTINGS, Group, Stepped


def halted_by_a_short_log(group: Group, *, hidden: int = 1) -> tuple[Stepped, Stepped]:
    """A leader that wrote, and a follower that has it all and was shown less."""
    a, b = group.node("a").lead(), group.node("b")
    a.put(1)
    a.put(2)
    b.follow()
    group.log.hide(hidden)
    assert b.follow().role == "halted"
    return a, b


def look(node: Stepped, *, for_s: float = 60.0) -> Stepped:
    """Let a halted node look for a while."""
    waited_s = 0.0
    while waited_s < for_s and node.role == "halted":
        node.clock.advance(1)
        waited_s += 1
        node.follow(1)
    return node


def test_a_node_goes_on_once_its_log_shows_again_what_it_had(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = Group()
    a, b = halted_by_a_short_log(group)
    assert look(b).role == "halted"
    reason = b.node.state().reason
    assert "entries are missing" in reason
    assert "goes on by itself" in reason

    group.log.show()
    with caplog.at_level(logging.WARNING, "millstream.cluster"):
        assert look(b).role == "follower"
    a.put(3)
    assert b.follow().numbers() == [1, 2, 3]
    assert "node_resumed" in caplog.messages
    report, _ = group.bulletin.reports()["b"]
    assert report.reason == ""
    assert report.resumed == reason
    assert b.node.state().resumes == 1


def test_a_node_that_went_on_may_lead() -> None:
    group = Group()
    _, b = halted_by_a_short_log(group)
    group.log.show()
    look(b).lead().put(3)
    assert b.numbers() == [1, 2, 3]


def test_a_node_that_starts_while_its_log_is_short_goes_on_as_well() -> None:
    group = Group()
    a = group.node("a").lead()
    a.put(1)
    engine = a.inner
    assert isinstance(engine, MemoryEngine)
    group.log.hide(1)
    again = group.node("a", engine.reopen())
    assert again.role == "halted"

    group.log.show()
    look(again).lead().put(2)
    assert again.numbers() == [1, 2]


def test_a_node_goes_on_once_its_log_is_there_again() -> None:
    group = Group()
    a, b = group.node("a").lead(), group.node("b").follow()
    group.log.is_gone = True
    with pytest.raises(MillstreamError):
        a.put(1)
    assert b.follow().role == "halted"
    assert look(b).role == "halted"

    group.log.is_gone = False
    assert look(b).role == "follower"


def test_a_log_that_went_on_without_what_the_node_had_stops_it_for_good() -> None:
    """A shorter log was written to: what this node has applied is in its own store alone."""
    group = Group()
    _, b = halted_by_a_short_log(group)
    group.log.hidden = []  # it is lost indeed
    for _ in range(3):
        other = entries.closing(group.log.last, group.log.entries[-1])
        assert group.log.store(entries.encode(other), group.log.last)

    look(b)
    assert "is not the one that this store has applied" in b.node.state().reason
    assert not b.node.member.may_resume


def test_a_log_that_was_trimmed_above_the_node_proves_nothing() -> None:
    group = Group()
    a, b = halted_by_a_short_log(group)
    group.log.show()
    for number in range(3, 8):
        a.put(number)
    group.log.trim(group.log.last - 1)
    assert look(b).role == "halted"
    assert "Restart this node" in b.node.state().reason
    assert b.numbers() == [1, 2]


def test_the_entry_behind_the_node_s_proves_it_too() -> None:
    group = Group()
    a, b = halted_by_a_short_log(group)
    group.log.show()
    behind = group.log.last
    a.put(3)
    group.log.trim(behind + 1)
    assert look(b).role == "follower"
    assert b.follow().numbers() == [1, 2, 3]


def test_an_empty_log_proves_what_it_was_begun_behind() -> None:
    """As `cluster repair` makes it: nodes that have all of it go on, others do not."""
    group = Group()
    _, b = halted_by_a_short_log(group)
    group.log.hidden = []
    group.log.first, group.log.entries = b.node.member.noted.sequence + 1, []
    assert look(b).role == "halted"

    group.log.behind = b.node.member.noted.hash
    look(b).lead().put(3)
    assert b.numbers() == [1, 2, 3]


def test_an_empty_log_that_was_begun_behind_another_store_stops_the_node_for_good() -> None:
    group = Group()
    _, b = halted_by_a_short_log(group)
    group.log.hidden = []
    group.log.first, group.log.entries = b.node.member.noted.sequence + 1, []
    group.log.behind = bytes(32)
    look(b)
    assert not b.node.member.may_resume


def test_a_node_that_starts_on_another_log_of_the_same_length_does_not_lead() -> None:
    """Its next entry would follow what no other node has."""
    group, other = Group(), Group()
    a, b = group.node("a").lead(), other.node("b").lead()
    a.put(1)
    b.put(2)
    engine = b.inner
    assert isinstance(engine, MemoryEngine)

    stranger = group.node("b", engine.reopen())
    assert "belongs to another cluster" in stranger.node.state().reason
    assert not stranger.node.member.may_resume


def test_a_log_that_does_not_answer_is_no_reason_to_go_on() -> None:
    group = Group()
    _, b = halted_by_a_short_log(group)
    group.log.show()

    def away(step: str) -> None:
        raise Unreachable(step)

    b.door.hook = away
    assert look(b).role == "halted"
    b.door.hook = None
    assert look(b).role == "follower"


def test_a_damaged_node_stays_halted() -> None:
    group = Group()
    _, b = halted_by_a_short_log(group)
    b.node.member.found_damage("page 7 is damaged")
    group.log.show()
    assert look(b).role == "halted"


def test_a_halt_that_stays_takes_the_place_of_one_that_may_pass() -> None:
    group = Group()
    _, b = halted_by_a_short_log(group)
    b.node.member.halt("another one was promoted")
    group.log.show()
    assert look(b).role == "halted"
    assert b.node.state().reason == "another one was promoted"
    with pytest.raises(NotLeader):
        b.put(9)


def test_a_halted_node_looks_more_and_more_seldom() -> None:
    group = Group()
    _, b = halted_by_a_short_log(group)
    looks: list[float] = []

    def note(step: str) -> None:
        looks.append(b.clock.seconds())

    b.door.hook = note
    look(b, for_s=200.0)
    gaps = [later - sooner for sooner, later in itertools.pairwise(looks)]
    assert gaps == sorted(gaps)
    assert gaps[0] < 5
    assert SETTINGS.look_again_s_max <= gaps[-1] < SETTINGS.look_again_s_max + 3


def test_a_leader_whose_log_is_gone_says_so() -> None:
    """Else it would be taken for the leader, and `cluster repair` would refuse."""
    group = Group()
    a = group.node("a").lead()
    a.put(1)

    def no_answer(step: str) -> None:
        if step == "sending":
            raise Unreachable("no server has such a subject")

    a.door.hook = no_answer
    group.log.is_gone = True
    for _ in range(3):
        a.clock.advance(1)
        a.follow(1)
    assert a.role == "halted"
    assert "is gone" in a.node.state().reason

    a.door.hook, group.log.is_gone = None, False
    look(a).lead().put(2)
    assert a.numbers() == [1, 2]


def test_a_log_that_goes_while_a_node_joins_is_looked_at_again() -> None:
    group = Group()
    a = group.node("a").lead()
    a.put(1)
    engine = a.inner
    assert isinstance(engine, MemoryEngine)
    asked = itertools.count()

    def go(step: str) -> None:
        group.log.is_gone = next(asked) == 1  # just when the node compares its last entry

    group.hook = go
    with pytest.raises(Unreachable):
        group.node("a", engine.reopen())
    again = group.node("a", engine.reopen())
    again.lead().put(2)
    assert again.numbers() == [1, 2]
