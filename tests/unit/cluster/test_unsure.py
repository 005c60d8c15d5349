"""An append whose outcome is not known: it is made certain, or the caller is told that it is not."""

from __future__ import annotations

import pytest

from millstream.cluster import entry as entries
from millstream.cluster.shared_log import Overtaken, Unreachable, Unsure
from millstream.engine.memory.faults import Torn
from millstream.errors import NoQuorum, NotLeader, OutcomeUnknown, WriteFailed
from tests.unit.cluster.stepping import SETTINGS, Group


def kinds(group: Group) -> list[int]:
    return [entries.decode(0, data).kind for data in group.log.entries]


def test_an_answer_that_is_lost_after_storing_is_found_in_the_log() -> None:
    group = Group()
    a = group.node("a").lead()
    a.faults.on("stored", Unsure("lost"))

    a.put(1)

    assert a.role == "leader"
    assert a.numbers() == group.node("b").follow().numbers() == [1]
    assert kinds(group).count(entries.COMMIT) == 1


def test_an_append_that_never_arrives_is_sent_again_behind_a_barrier() -> None:
    group = Group()
    a = group.node("a").lead()
    a.faults.on("sent", Unsure("lost"))

    a.put(1)
    group.log.deliver()  # the first one is still on its way: it fits no more

    assert a.role == "leader"
    assert kinds(group)[-2:] == [entries.BARRIER, entries.COMMIT]
    assert a.numbers() == group.node("b").follow().numbers() == [1]


def test_an_append_that_arrives_while_a_barrier_is_tried_counts() -> None:
    group = Group()
    a = group.node("a").lead()

    def late(step: str) -> None:
        if a.faults.steps.count("sending") == sends + 2:  # the barrier is about to be sent
            group.log.deliver()
        a.faults(step)

    sends = a.faults.steps.count("sending")
    a.faults.on("sent", Unsure("late"))
    a.door.hook = late
    a.put(1)

    assert kinds(group)[-1] == entries.COMMIT
    assert kinds(group).count(entries.COMMIT) == 1
    assert a.numbers() == [1]


def away(step: str) -> None:
    """The servers of the log elect one of them: nothing can be sent."""
    if step == "sending":
        raise Unreachable("down")


def test_a_commit_waits_while_the_servers_of_the_log_elect_one_of_them() -> None:
    group = Group()
    a = group.node("a").lead()
    for nth in range(1, 10):
        a.faults.on("sending", Unreachable("down"), nth=nth)
    began_s = a.clock.seconds()

    a.put(1)

    assert 0.3 < a.clock.seconds() - began_s < SETTINGS.settle_timeout_s
    assert a.numbers() == group.node("b").follow().numbers() == [1]


def test_a_log_that_stays_away_before_anything_is_sent_means_no_quorum_and_then_at_once() -> None:
    group = Group()
    a = group.node("a").lead()
    a.door.hook = away
    began_s = a.clock.seconds()

    with pytest.raises(NoQuorum, match="nothing was stored"):
        a.put(1)
    waited_s = a.clock.seconds() - began_s
    assert SETTINGS.settle_timeout_s <= waited_s < SETTINGS.settle_timeout_s + 0.2

    with pytest.raises(NoQuorum):
        a.put(2)
    assert a.clock.seconds() - began_s == waited_s  # callers do not stand in line one by one

    a.door.hook = None
    a.put(3)
    a.door.hook = away
    with pytest.raises(NoQuorum):
        a.put(4)
    assert a.clock.seconds() - began_s >= waited_s + SETTINGS.settle_timeout_s  # a loss of its own
    assert a.numbers() == [3]


def test_a_sign_of_life_does_not_wait_so_that_the_loop_goes_on_reporting() -> None:
    group = Group()
    a = group.node("a").lead()
    a.door.hook = away
    a.clock.advance(1)
    began_s = a.clock.seconds()

    with pytest.raises(NoQuorum):
        a.node.step()

    assert a.clock.seconds() == began_s


def test_a_leader_whose_sign_of_life_is_unsure_reports_meanwhile_and_keeps_its_lead() -> None:
    """Its followers would campaign as soon as the log is back, and callers would see a fail-over."""
    group = Group()
    a = group.node("a").lead()
    ages_s: list[float] = []

    def unsure(step: str) -> None:
        report, age_s = group.bulletin.reports()["a"]
        assert report.role == "leader"
        ages_s.append(age_s)
        group.clock.advance(0.05)
        if step == "sent" and len(ages_s) < 5:
            raise Unsure("no answer")
        if step == "reading" and a.clock.seconds() < began_s + 0.9:
            raise Unreachable("down")

    a.clock.advance(1)
    began_s = a.clock.seconds()
    a.door.hook = unsure
    a.node.step()

    assert a.role == "leader"
    assert len(ages_s) > 15
    assert max(ages_s) < SETTINGS.silence_s / 2


def test_a_node_that_stops_does_not_wait_for_the_log() -> None:
    group = Group()
    a = group.node("a").lead()
    a.door.hook = away
    a.node.hurry()
    began_s = a.clock.seconds()

    with pytest.raises(NoQuorum):
        a.put(1)
    a.door.hook = None
    a.faults.on("sent", Unsure("no answer"))
    a.faults.on("reading", Unreachable("down"))
    a.door.hook = a.faults
    with pytest.raises(OutcomeUnknown):
        a.put(2)

    assert a.clock.seconds() == began_s


def test_a_log_that_stays_away_after_an_append_leaves_the_outcome_unknown_and_bounds_the_time() -> (
    None
):
    group = Group()
    a = group.node("a").lead()
    a.faults.on("sent", Unsure("no answer"))
    for nth in range(1, 1_000):
        a.faults.on("reading", Unreachable("down"), nth=nth)
    began_s = a.clock.seconds()

    with pytest.raises(OutcomeUnknown):
        a.put(1)

    assert a.clock.seconds() - began_s < 2
    assert a.role == "follower"
    with pytest.raises(NotLeader):
        a.put(2)
    a.door.hook = None
    group.log.deliver()
    a.lead()
    assert a.numbers() == [1]


def test_a_leader_that_was_overtaken_says_who_leads_and_stores_nothing() -> None:
    group = Group()
    a, b = group.node("a").lead(), group.node("b")
    b.lead()

    with pytest.raises(NotLeader) as refused:
        a.put(1)

    assert refused.value.leader == "http://b"
    assert (a.role, a.numbers()) == ("follower", [])
    b.put(2)
    assert a.follow().numbers() == b.numbers() == [2]


@pytest.mark.parametrize("kept", [True, False])
def test_a_commit_that_the_quorum_has_and_this_node_could_not_store_is_replayed(kept: bool) -> None:
    group = Group()
    a = group.node("a").lead()
    a.disk.on("sent", Torn(kept=kept))

    with pytest.raises(OutcomeUnknown, match="the cluster has the commit"):
        a.put(1)
    assert a.role == "follower"

    assert a.follow().numbers() == [1]
    a.lead().put(2)
    assert a.numbers() == group.node("b").follow().numbers() == [1, 2]


def test_a_disk_that_refuses_what_the_quorum_has_leaves_the_outcome_unknown() -> None:
    group = Group()
    a = group.node("a").lead()
    a.disk.on("commit", WriteFailed("full"))

    with pytest.raises(OutcomeUnknown):
        a.put(1)

    assert a.follow().numbers() == [1]


def test_an_interrupted_commit_is_unknown_until_the_store_has_recovered() -> None:
    group = Group()
    a = group.node("a").lead()
    a.faults.on("stored", KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        a.put(1)
    with pytest.raises(OutcomeUnknown, match="KeyboardInterrupt"):
        a.put(2)
    a.node.engine.recover()
    with pytest.raises(NotLeader):
        a.put(2)
    assert a.follow().numbers() == [1]


def test_an_epoch_whose_answer_was_lost_begins_when_it_is_read() -> None:
    group = Group()
    a = group.node("a")
    a.faults.on("stored", Unsure("lost"))
    a.lead().put(1)

    assert kinds(group).count(entries.EPOCH) == 1
    assert a.numbers() == [1]


def test_an_epoch_of_an_earlier_life_does_not_make_a_node_lead() -> None:
    group = Group()
    a = group.node("a")
    a.faults.on("sent", Unsure("late"))
    while not group.log.late:
        a.clock.advance(1)
        a.node.step()
    again = group.node("a")  # it started anew, and its old epoch arrives now
    group.log.deliver()
    again.follow(1)

    assert kinds(group) == [entries.EPOCH]
    assert again.role == "follower"
    with pytest.raises(NotLeader) as refused:
        again.put(1)
    assert refused.value.leader is None


def test_a_strong_read_needs_an_append_that_was_begun_after_it() -> None:
    group = Group()
    a, b = group.node("a").lead(), group.node("b").follow()
    since = 0

    def hook(step: str) -> None:
        nonlocal since
        if step == "stored" and not since:
            since = a.node.member.begun  # a strong read comes: the append is stored already
            b.lead().put(7)
            a.door.seen = a.node.state().sequence
            raise Unsure("no answer")
        if step == "sending" and since:
            a.door.seen = None  # a barrier is tried, and only then its own entry is seen

    a.door.hook = hook
    a.put(1)
    a.door.hook = None

    with a.node.member.turn, pytest.raises(NotLeader):
        a.node.member.prove(since)


def test_strong_reads_that_wait_share_one_barrier() -> None:
    group = Group()
    a = group.node("a").lead()
    member = a.node.member
    since = [member.begun for _ in range(5)]
    entries_before = group.log.last

    for one in since:
        with member.turn:
            member.prove(one)
    assert group.log.last == entries_before + 1

    before = member.begun
    a.put(1)  # an append of its own shows the same
    with member.turn:
        member.prove(before)
    assert group.log.last == entries_before + 2


def test_a_strong_read_on_a_deposed_leader_is_refused() -> None:
    group = Group()
    a, b = group.node("a").lead(), group.node("b")
    b.lead().put(1)

    with pytest.raises(NotLeader) as refused:
        a.node.barrier(1)

    assert refused.value.leader == "http://b"


def test_an_overtaken_append_of_which_the_log_has_the_entry_succeeds() -> None:
    """A server that was asked twice may refuse the second time what it took the first time."""
    group = Group()
    a = group.node("a").lead()
    a.faults.on("stored", Overtaken("sent twice"))

    a.put(1)

    assert (a.role, a.numbers()) == ("leader", [1])


def test_a_leader_that_cannot_write_says_so_until_it_can() -> None:
    group = Group()
    a = group.node("a").lead()
    assert a.node.state().reason == ""

    def away(step: str) -> None:
        if step == "sending":
            raise Unreachable("no server answers")

    a.door.hook = away
    a.clock.advance(1)
    assert "no server answers" in a.follow(1).node.state().reason
    a.door.hook = None
    a.put(1)
    assert a.node.state().reason == ""
