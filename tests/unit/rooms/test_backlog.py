"""Backlogs of rooms: what a server has not delivered, and how bad that is."""

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


def test_what_was_delivered_is_no_backlog_however_long_it_is_remembered(served: Served) -> None:
    served.specify("hall", ttl=3_600)
    served.send("hall", *[message("chat") for _ in range(6)])
    served.clock.advance(20)
    found = backlog(served, OwnPlace("one", {"hall": 6}))
    assert (found.messages, found.sent, found.unpassed, found.oldest_s) == (6, 6, 0, 0.0)


def test_a_room_without_listeners_here_has_no_backlog(served: Served) -> None:
    served.send("hall", message("chat"))
    served.clock.advance(100)
    assert backlog(served).status == "healthy"
    assert backlog(served, OwnPlace("one", {"yard": 0})).status == "healthy"


def test_what_was_not_delivered_counts_from_the_oldest(served: Served) -> None:
    served.send("hall", *[message("chat") for _ in range(4)])
    served.clock.advance(5)
    served.send("hall", *[message("chat") for _ in range(2)])
    served.clock.advance(10)
    found = backlog(served, OwnPlace("one", {"hall": 3}))
    assert (found.unpassed, found.oldest_s, found.status) == (3, 15.0, "warning")
    found = backlog(served, OwnPlace("one", {"hall": 5}))
    assert (found.unpassed, found.oldest_s) == (1, 10.0)


@pytest.mark.parametrize("life", ["alive", "silent", "started again", "freed", "forgotten"])
def test_another_instance_is_no_backlog_of_this_one(served: Served, life: str) -> None:
    at = "other", served.take("other", "elsewhere")
    served.send("hall", *[message("chat") for _ in range(6_000)])
    served.ask(c.NoteWatermarks(*at, [Watermark("hall", 0)]))
    served.clock.advance({"alive": 20, "forgotten": 90_000}.get(life, 40))
    if life == "started again":
        served.take("other")
    if life == "freed":
        served.ask(c.FreeInstance(*at))
    found = backlog(served, OwnPlace("one", {"hall": 6_000}))
    assert (found.unpassed, found.status) == (0, "healthy")


def test_what_expired_before_it_was_delivered_is_still_a_backlog(served: Served) -> None:
    served.send("hall", *[message("chat") for _ in range(3)])
    served.ms.log("room:hall").truncate(before=2)
    served.clock.advance(20)
    found = backlog(served, OwnPlace("one", {"hall": 0}))
    assert (found.messages, found.unpassed, found.oldest_s) == (1, 3, 20.0)
    served.ms.log("room:hall").truncate(before=3)
    served.clock.advance(20)
    found = backlog(served, OwnPlace("one", {"hall": 0}))
    assert (found.messages, found.unpassed) == (0, 3)
    assert found.oldest_s >= 20.0
    assert found.status != "healthy"


def test_more_rooms_than_one_look_takes_are_all_found(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.rooms.backlog.ROOMS_PER_LOOK", 2)
    for name in "abcde":
        served.send(name, message("chat"))
    found = find_backlogs(Probe(served.ms).store)
    assert [one.room for one in found] == list("abcde")
