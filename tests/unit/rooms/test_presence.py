"""Presence: who comes and goes is told once, a reload is silent, the dead are not forgotten."""

from __future__ import annotations

import pytest

from millstream.errors import Fenced
from millstream.format import keys
from millstream.rooms import commands as c
from millstream.rooms.commands import LEASE_MS
from millstream.rooms.model import Leaving
from millstream.rooms.presence import GRACE_MS
from millstream.testing import Probe
from tests.unit.rooms.serving import Served, message

LEASE_S, GRACE_S = LEASE_MS / 1000, GRACE_MS / 1000


def test_the_first_connection_of_a_user_is_told(served: Served) -> None:
    at = "one", served.take("one")
    joined = served.join("hall", "ann", at)
    assert (joined.is_first, joined.start, joined.offset) == (True, 0, 1)
    assert not served.join("hall", "ann", at, "2").is_first
    assert served.join("hall", "bob", at, "3").is_first
    assert served.told("hall") == [("joined", "ann"), ("joined", "bob")]
    assert served.users("hall") == {"ann": 2, "bob": 1}
    info = served.ask(c.DescribeRoom("hall"))
    assert info is not None
    assert (info.users, info.connections) == (2, 3)


def test_a_user_has_left_some_seconds_after_the_last_connection(served: Served) -> None:
    at = "one", served.take("one")
    served.join("hall", "ann", at, "1")
    served.join("hall", "ann", at, "2")
    served.leave("hall", "ann", at, "1")
    served.clock.advance(GRACE_S)
    assert served.settle() == 0
    served.leave("hall", "ann", at, "2")
    assert served.users("hall") == {"ann": 0}
    served.clock.advance(GRACE_S - 0.001)
    assert served.settle() == 0
    served.clock.advance(0.001)
    assert served.settle() == 1
    assert served.told("hall") == [("joined", "ann"), ("left", "ann")]
    assert served.users("hall") == {}
    assert Probe(served.ms).rows(keys.PRESENCE) == {}


def test_a_reload_is_silent(served: Served) -> None:
    one, two = ("one", served.take("one")), ("two", served.take("two"))
    served.join("hall", "ann", one, "1")
    served.leave("hall", "ann", one, "1")
    served.clock.advance(GRACE_S - 1)
    assert not served.join("hall", "ann", two, "2").is_first
    served.clock.advance(20)
    assert served.settle() == 0
    assert served.told("hall") == [("joined", "ann")]
    assert served.users("hall") == {"ann": 1}


def test_the_same_connection_may_join_again(served: Served) -> None:
    at = "one", served.take("one")
    for _ in range(2):
        served.join("hall", "ann", at)
    served.leave("hall", "ann", at)
    served.join("hall", "ann", at)
    served.clock.advance(2 * GRACE_S)
    assert served.settle() == 0
    assert served.users("hall") == {"ann": 1}
    info = served.ask(c.DescribeRoom("hall"))
    assert info is not None
    assert (info.users, info.connections) == (1, 1)


def test_to_leave_twice_or_what_was_never_joined_changes_nothing(served: Served) -> None:
    at = "one", served.take("one")
    served.join("hall", "ann", at)
    for _ in range(2):
        served.leave("hall", "ann", at)
        served.clock.advance(3)
    served.ask(c.LeaveRooms(*at, [Leaving("nowhere", "ann", "1"), Leaving("hall", "bob", "1")]))
    assert served.settle() == 1
    assert served.told("hall") == [("joined", "ann"), ("left", "ann")]


def test_one_without_a_user_listens_unseen(served: Served) -> None:
    at = "one", served.take("one")
    assert served.join("hall", "", at).offset == 0
    served.leave("hall", "", at)
    assert served.users("hall") == {}
    assert served.told("hall") == []


def test_the_users_of_an_instance_that_died_leave_once(served: Served) -> None:
    one, two = ("one", served.take("one")), ("two", served.take("two"))
    for number in range(3):
        served.join("hall", f"user {number}", one, str(number))
    served.join("hall", "user 0", two, "other")
    for _ in range(3):
        served.clock.advance(LEASE_S / 3)
        served.ask(c.RenewInstance(*two))
        assert served.settle() == 0
    assert served.users("hall") == {"user 0": 1, "user 1": 0, "user 2": 0}
    served.clock.advance(GRACE_S)
    assert served.settle() == 2
    assert served.settle() == 0
    assert served.told("hall")[3:] == [("left", "user 1"), ("left", "user 2")]
    assert served.users("hall") == {"user 0": 1}


def test_users_of_an_instance_that_was_started_again_may_come_back_in_silence(
    served: Served,
) -> None:
    first = "one", served.take("one", "a holder")
    served.join("hall", "ann", first, "1")
    served.join("hall", "bob", first, "2")
    served.clock.advance(1)
    second = "one", served.take("one", "a holder")
    assert second[1] > first[1]
    assert served.settle() == 0
    served.clock.advance(GRACE_S - 1)
    assert not served.join("hall", "ann", second, "1").is_first
    served.clock.advance(1)
    assert served.settle() == 1
    assert served.users("hall") == {"ann": 1}
    assert served.told("hall")[2:] == [("left", "bob")]


def test_an_earlier_generation_may_neither_join_nor_leave_for_its_successor(
    served: Served,
) -> None:
    first = "one", served.take("one", "a holder")
    served.join("hall", "ann", first)
    second = "one", served.take("one", "a holder")
    with pytest.raises(Fenced, match="join again"):
        served.join("hall", "bob", first, "2")
    served.join("hall", "ann", second)
    served.leave("hall", "ann", first)
    served.clock.advance(2 * GRACE_S)
    assert served.settle() == 0
    assert served.users("hall") == {"ann": 1}


def test_an_instance_that_was_freed_lets_its_users_go(served: Served) -> None:
    at = "one", served.take("one")
    served.join("hall", "ann", at)
    served.ask(c.FreeInstance(*at))
    assert served.settle() == 0
    served.clock.advance(GRACE_S)
    assert served.settle() == 1


def test_many_users_leave_a_bounded_number_at_a_time(served: Served) -> None:
    at = "one", served.take("one")
    for number in range(25):
        served.join(f"room {number % 2}", f"user {number}", at, str(number))
    served.clock.advance(LEASE_S + GRACE_S)
    told = [served.ask(c.SettlePresence(10)) for _ in range(6)]
    assert max(told) <= 10
    assert sum(told) == 25
    assert Probe(served.ms).rows(keys.ATTENDANCE) == {}


def test_a_room_whose_log_is_held_is_told_later(served: Served) -> None:
    at = "one", served.take("one")
    served.join("hall", "ann", at)
    served.join("kitchen", "bob", at)
    stage = served.ms.log("room:hall").stage()
    served.ask(c.FreeInstance(*at))
    served.clock.advance(GRACE_S)
    assert served.settle() == 1
    assert served.users("hall") == {"ann": 0}
    stage.close()
    served.clock.advance(1)
    assert served.settle() == 1
    assert served.told("hall") == [("joined", "ann"), ("left", "ann")]


def test_the_background_settles_presence(served: Served) -> None:
    at = "one", served.take("one")
    served.join("hall", "ann", at)
    served.clock.advance(LEASE_S)
    Probe(served.ms).upkeep()
    assert served.users("hall") == {"ann": 0}
    served.clock.advance(GRACE_S)
    Probe(served.ms).upkeep()
    assert served.users("hall") == {}


def test_a_look_tells_everything_as_of_one_commit(served: Served) -> None:
    at = "one", served.take("one")
    served.specify("hall", retained=("rect",))
    served.send("hall", message("rect", 1, "a"))
    served.join("hall", "ann", at)
    look = served.ask(c.LookIntoRoom("hall"))
    assert (look.start, look.offset) == (0, 2)
    assert [one.user for one in look.presence] == ["ann"]
    assert [one.key for one in look.retained] == ["a"]
    assert served.ask(c.LookIntoRoom("nowhere")).offset == 0
