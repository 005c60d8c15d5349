"""Backlogs of rooms: what living instances have not passed, and how bad that is."""

from __future__ import annotations

import pytest

from millstream.rooms import commands as c
from millstream.rooms.backlog import NOWHERE, OwnPlace, RoomBacklog, find_backlogs, grade
from millstream.rooms.model import Watermark
from millstream.testing import Probe
from tests.unit.rooms.serving import Served, message


@pytest.mark.parametrize(
    ("messages", "age_s", "status"),
    [
        (0, 0.0, "healthy"),
        (999, 9.9, "healthy"),
        (1_000, 0.0, "warning"),
        (0, 10.0, "warning"),
        (5_000, 30.0, "warning"),
        (5_001, 0.0, "critical"),
        (1, 30.1, "critical"),
        (5_001, 30.1, "critical"),
    ],
)
def test_the_worse_of_number_and_age_counts(messages: int, age_s: float, status: str) -> None:
    assert grade(messages, age_s) == status
    assert RoomBacklog(room="hall", unpassed=messages, oldest_s=age_s).status == status


def backlog(served: Served, own: OwnPlace = NOWHERE) -> RoomBacklog:
    (found,) = find_backlogs(Probe(served.ms).store, own)
    return found


def test_what_all_have_passed_is_no_backlog_however_long_it_is_remembered(served: Served) -> None:
    at = "one", served.take("one")
    served.specify("hall", ttl=3_600)
    served.send("hall", *[message("chat") for _ in range(6)])
    served.ask(c.NoteWatermarks(*at, [Watermark("hall", 6)]))
    served.clock.advance(20)
    found = backlog(served)
    assert (found.messages, found.sent, found.unpassed, found.oldest_s) == (6, 6, 0, 0.0)


def test_a_room_that_no_instance_serves_has_no_backlog(served: Served) -> None:
    served.send("hall", message("chat"))
    served.clock.advance(100)
    assert backlog(served).status == "healthy"


def test_the_slowest_living_instance_counts(served: Served) -> None:
    one, two = ("one", served.take("one")), ("two", served.take("two"))
    served.send("hall", *[message("chat") for _ in range(4)])
    served.clock.advance(5)
    served.send("hall", *[message("chat") for _ in range(2)])
    served.ask(c.NoteWatermarks(*one, [Watermark("hall", 5)]))
    served.ask(c.NoteWatermarks(*two, [Watermark("hall", 3)]))
    served.clock.advance(10)
    found = backlog(served)
    assert (found.unpassed, found.oldest_s, found.status) == (3, 15.0, "warning")
    served.clock.advance(10)
    served.ask(c.RenewInstance(*one))
    served.clock.advance(6)  # the other one is dead now
    found = backlog(served)
    assert (found.unpassed, found.oldest_s) == (1, 26.0)


def test_what_an_instance_may_not_have_noted_yet_counts_as_passed(served: Served) -> None:
    at = "one", served.take("one")
    served.send("hall", message("chat"))
    served.ask(c.NoteWatermarks(*at, [Watermark("hall", 0)]))
    served.clock.advance(2)
    assert backlog(served).unpassed == 0
    served.clock.advance(1)
    assert backlog(served).unpassed == 1


def test_an_instance_knows_best_how_far_it_has_come_itself(served: Served) -> None:
    at = "one", served.take("one")
    served.send("hall", *[message("chat") for _ in range(3)])
    served.ask(c.NoteWatermarks(*at, [Watermark("hall", 0)]))
    served.clock.advance(20)
    assert backlog(served, OwnPlace("one", {"hall": 3})).unpassed == 0
    assert backlog(served, OwnPlace("one", {"hall": 2})).unpassed == 1
    assert backlog(served, OwnPlace("one", {})).unpassed == 0


def test_expired_messages_are_not_counted(served: Served) -> None:
    at = "one", served.take("one")
    served.send("hall", *[message("chat") for _ in range(3)])
    served.ask(c.NoteWatermarks(*at, [Watermark("hall", 0)]))
    served.ms.log("room:hall").truncate(before=2)
    served.clock.advance(20)
    found = backlog(served)
    assert (found.messages, found.unpassed) == (1, 1)


def test_more_rooms_than_one_look_takes_are_all_found(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.rooms.backlog.ROOMS_PER_LOOK", 2)
    for name in "abcde":
        served.send(name, message("chat"))
    found = find_backlogs(Probe(served.ms).store)
    assert [one.room for one in found] == list("abcde")
