"""Lanes of groups, and rows that list neighbours: what is not held up costs no row of its own."""

from __future__ import annotations

import pytest

from millstream import Millstream
from millstream.format import keys
from millstream.queue.model import roster
from millstream.queue.model.roster import Roster, Rostered
from millstream.queue.rules import grouped_lane as passing
from millstream.queue.rules import index
from millstream.queue.rules.claim_plan import NextStep
from millstream.queue.service import claims
from millstream.replica.commands import SetAside
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, fold_all, values

pytestmark = pytest.mark.embedded


def listed(ms: Millstream, *kinds: int) -> int:
    """How many rows and records of some types there are."""
    fold_all(ms)
    return sum(
        len(
            Probe(ms).store.view(
                lambda view, kind=kind: view.scan(*keys.range_of(keys.prefix(kind)), limit=9_999)
            )
        )  # type: ignore[misc]
        for kind in kinds
    )


def grouped(ms: Millstream, name: str = "jobs", **options: object) -> Queue:
    spec = {"sources": "l", "start": "earliest", "group_by": "g", "backoff": 5, **options}
    return ms.queue(name, bucket_exponent=1, **spec)  # type: ignore[arg-type]


def append(ms: Millstream, names: str) -> None:
    """Messages such as 'a1': the group and a number."""
    found = names.split()
    ms.log("l").append_many(found, headers=[{"g": name[0]} for name in found])


def test_groups_that_nothing_holds_up_have_no_rows(ms: Millstream) -> None:
    queue = grouped(ms)
    append(ms, "a1 b1 c1 d1 e1 f1")
    queue.peek(0)
    kinds = keys.GROUP, keys.MEMBER, keys.READY, keys.RETRY
    assert listed(ms, *kinds) == 0
    held = queue.claim(4)
    assert (values(held), listed(ms, *kinds)) == ([b"a1", b"b1", b"c1", b"d1"], 0)
    queue.ack(held)
    assert values(queue.claim(4)) == [b"e1", b"f1"]


def test_a_customer_s_order_survives_a_restart_in_the_middle(reopen: Reopen) -> None:
    ms = reopen()
    queue = grouped(ms)
    append(ms, "a1 a2 b1 a3 c1 b2 c2 a4")
    held = queue.claim(5)
    assert values(held) == [b"a1", b"b1", b"c1"]
    queue.ack(held[0])
    queue.nack(held[1], delay=0)
    ms = reopen()
    queue = ms.queue("jobs")
    append(ms, "d1 b3")
    again = queue.claim(9)
    assert values(again) == [b"a2", b"b1", b"d1"]
    queue.ack([*again, held[2]])
    fold_all(ms)
    queue = reopen().queue("jobs")
    rest = queue.claim(9)
    assert values(rest) == [b"a3", b"b2", b"c2"]
    assert values(queue.claim(9, ack=rest)) == [b"a4", b"b3"]


def test_what_is_held_up_is_passed_over_in_steps(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "PASSED_MAX", 2)
    queue = grouped(ms)
    append(ms, "a1 a2 a3 a4 a5 a6 a7 b1 a8 b2 c1")
    assert values(queue.claim(3)) == [b"a1", b"b1", b"c1"]
    assert counts(queue) == {"available": 8, "in_flight": 3}


def test_a_claim_does_not_pass_over_messages_for_ever(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "PASSED_MAX", 2)
    monkeypatch.setitem(claims.TIME_LIMITS_S, NextStep.BLOCKED, 0.0)
    queue = grouped(ms)
    append(ms, "a1 a2 a3 a4 a5 a6 b1")
    assert values(queue.claim(3)) == [b"a1"]
    assert queue.claim(3) == []
    assert values(queue.claim(3)) == [b"b1"]


@pytest.mark.parametrize("most", [0, 2])
def test_the_roster_need_not_name_all_groups(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(roster, "NAMED_MAX", most)
    queue = grouped(ms)
    append(ms, "a1 b1 c1 d1 a2 b2 c2 d2 e1 a3 b3 e2")
    first = queue.claim(12)
    assert values(first) == [b"a1", b"b1", b"c1", b"d1", b"e1"]
    queue.nack(first[1], delay=0)
    second = queue.claim(12, ack=[first[0], *first[2:]])
    assert values(second) == [b"b1", b"a2", b"c2", b"d2", b"e2"]
    third = queue.claim(12, ack=second)
    assert values(third) == [b"b2", b"a3"]
    assert values(queue.claim(12, ack=third)) == [b"b3"]


def test_a_roster_counts_what_it_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "NAMED_MAX", 2)
    found = Roster()
    found.apply(Rostered(flew=["a", "a", "b"], opened=["a", "b"]))
    assert (found.flying, found.named.keys()) == ({"a": 2, "b": 1}, {"a", "b"})
    found.apply(Rostered(opened=["c"]))
    found.apply(Rostered(landed=["a", "b"], closed=["a"]))
    assert (found.flying, found.count, found.names_all) == ({"a": 1}, 2, False)
    found.apply(Rostered(landed=["a"], closed=["b", "c"]))
    assert found.names_all
    assert not found.exists()
    found.apply(Rostered(opened=["d"]))
    assert (found.count, found.named.keys()) == (1, {"d"})


def test_a_noisy_tenant_in_the_lane_lets_others_go_first(ms: Millstream) -> None:
    queue = grouped(ms, group_in_flight=0)
    append(ms, " ".join(f"a{n}" for n in range(60)))
    assert len(queue.claim(40)) == 40
    append(ms, "b1 c1")
    assert values(queue.claim(3)) == [b"b1", b"c1", b"a40"]
    assert values(queue.claim(2)) == [b"a41", b"a42"]


def test_delayed_neighbours_share_a_row_and_are_cut_where_they_part(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", bucket_exponent=2, backoff=0)
    queue.put_many([b"%d" % n for n in range(20)], delay=5)
    assert (listed(ms, keys.RETRY), counts(queue)) == (1, {"delayed": 20})
    assert queue.claim(9) == []
    clock.advance(5)
    assert counts(queue) == {"available": 20}
    first = queue.claim(8)
    assert values(first) == [b"%d" % n for n in range(8)]
    assert (listed(ms, keys.RETRY), listed(ms, keys.READY)) == (0, 1)
    queue.nack(first[2:5], delay=3)
    assert listed(ms, keys.RETRY) == 1
    assert values(queue.claim(2)) == [b"8", b"9"]
    clock.advance(3)
    assert values(queue.claim(4)) == [b"2", b"3", b"4", b"10"]
    assert queue.purge() == 9
    assert listed(ms, keys.READY, keys.RETRY) == 0
    assert queue.claim(9) == []


def test_scheduled_neighbours_share_a_row(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", bucket_exponent=2)
    queue.put_many([b"%d" % n for n in range(7)], at=clock.wall_ms() + 4_000)
    assert (listed(ms, keys.SCHEDULE), counts(queue)) == (1, {"delayed": 7})
    clock.advance(4)
    assert values(queue.claim(3)) == [b"0", b"1", b"2"]
    assert values(queue.pop(9)) == [b"3", b"4", b"5", b"6"]


def test_many_rows_that_are_due_are_made_ready_in_order(
    ms: Millstream, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "ROWS_PER_READ", 2)
    queue = ms.queue("jobs", bucket_exponent=2)
    for n in range(9):
        queue.put(b"%d" % n, delay=1 + n % 3)
    clock.advance(3)
    assert values(queue.claim(5)) == [b"0", b"1", b"2", b"3", b"4"]
    assert values(queue.claim(5)) == [b"5", b"6", b"7", b"8"]


def test_the_end_of_a_log_that_is_set_aside_cuts_neighbours(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", sources="l", start="earliest", delay=5, bucket_exponent=2)
    append(ms, "a1 b1 a2 b2 a3 b3")
    queue.peek(0)
    ms.session.execute(SetAside("l", 4, 0))
    assert counts(queue) == {"delayed": 4}
    clock.advance(5)
    assert values(queue.claim(2)) == [b"a1", b"b1"]
    ms.session.execute(SetAside("l", 3, 0))
    assert counts(queue) == {"available": 1, "in_flight": 2}
    assert values(queue.claim(9)) == [b"a2"]


def test_the_end_of_a_log_that_is_set_aside_leaves_the_lane_of_groups(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = grouped(ms, delay=5)
    append(ms, "a1 a2 b1 a3 b2 c1")
    queue.peek(0)
    ms.session.execute(SetAside("l", 4, 0))
    assert counts(queue) == {"delayed": 4}
    assert queue.claim(9) == []
    clock.advance(5)
    assert values(queue.claim(9)) == [b"a1", b"b1"]
    ms.session.execute(SetAside("l", 3, 0))
    assert counts(queue) == {"available": 1, "in_flight": 2}
    append(ms, "b3 d1")
    clock.advance(5)
    assert values(queue.claim(9)) == [b"d1"]


def test_a_delayed_one_in_the_lane_keeps_its_place_in_its_group(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = grouped(ms)
    append(ms, "a1 b1")
    queue.put(b"a2", group="a", delay=4)
    queue.put(b"c1", group="c", delay=4)
    append(ms, "a3 c2")
    held = queue.claim(9)
    assert values(held) == [b"a1", b"b1"]
    queue.ack(held)
    assert queue.claim(9) == []
    clock.advance(4)
    held = queue.claim(9)
    assert values(held) == [b"a2", b"c1"]
    assert values(queue.claim(9, ack=held)) == [b"a3", b"c2"]
