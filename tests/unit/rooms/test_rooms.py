"""Rooms as a whole: settings, listings, what goes with a room."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.command import Transact
from millstream.errors import Conflict, InvalidInput
from millstream.format import keys
from millstream.rooms import commands as c
from millstream.rooms.settings import DEFAULTS, RoomSettings, altered
from millstream.testing import Probe
from tests.unit.rooms.serving import Served, message


def test_a_room_has_the_defaults_until_something_else_is_said(served: Served) -> None:
    served.send("hall", message("chat"))
    info = served.ask(c.DescribeRoom("hall"))
    assert info is not None
    assert info.settings == DEFAULTS == RoomSettings()
    served.specify("hall", ttl=5.0)
    info = served.ask(c.DescribeRoom("hall"))
    assert info is not None
    assert info.settings == RoomSettings(ttl=5.0)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ttl": -1.0}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
        ({"tick": 0.0}, "tick"),
        ({"messages_per_second": -1.0}, "messages_per_second"),
        ({"message_bytes_max": 0}, "message_bytes_max"),
        ({"waiting_bytes_max": 0}, "waiting_bytes_max"),
        ({"retained": ("joined",)}, "store alone"),
        ({"conflated": ("",)}, "1 to 64"),
        ({"retained": ("pointer",)}, "not both: 'pointer'"),
        ({"retained": tuple(map(str, range(101)))}, "at most 100"),
    ],
)
def test_settings_are_checked(served: Served, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        served.specify("hall", **settings)
    assert served.ask(c.DescribeRoom("hall")) is None


def test_settings_are_altered_by_their_names() -> None:
    found = altered(DEFAULTS, {"ttl": 5, "retained": "rect", "conflated": ["pointer"]})
    assert found == RoomSettings(ttl=5.0, retained=("rect",), conflated=("pointer",))
    for wrong in ({"tll": 5}, {"ttl": "soon"}, {"retained": 5}, {"retained": [5]}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            altered(DEFAULTS, wrong)


def test_settings_that_were_changed_meanwhile_are_not_overwritten(served: Served) -> None:
    served.specify("hall", ttl=5.0)
    with pytest.raises(Conflict, match="meanwhile"):
        served.ask(c.SpecifyRoom("hall", RoomSettings(ttl=7.0), DEFAULTS))
    served.ask(c.SpecifyRoom("hall", RoomSettings(ttl=7.0), RoomSettings(ttl=5.0)))


def test_rooms_are_listed_a_page_at_a_time(served: Served) -> None:
    for name in ("b", "a", "c", "room:d"):
        served.send(name, message("chat"))
    served.ms.log("rooms").append(b"x")
    served.ms.log("a").append(b"x")
    assert [one.name for one in served.ask(c.ListRooms("", 10))] == ["a", "b", "c", "room:d"]
    assert [one.name for one in served.ask(c.ListRooms("a", 2))] == ["b", "c"]


def test_a_log_that_is_named_as_one_is_a_room(served: Served) -> None:
    served.ms.log("room:hall").append(b"\xff")
    assert [one.name for one in served.ask(c.ListRooms("", 10))] == ["hall"]
    assert served.send("hall", message("chat")) == 1


@pytest.mark.parametrize("by_log", [False, True])
def test_with_a_room_goes_everything_that_was_kept(served: Served, by_log: bool) -> None:
    at = "one", served.take("one")
    served.specify("hall", retained=("rect",))
    served.send("hall", message("rect", 1, "a"))
    served.join("hall", "ann", at)
    assert served.ms.log("room:hall").delete() if by_log else served.ask(c.DeleteRoom("hall"))
    assert served.ask(c.DescribeRoom("hall")) is None
    assert not served.ask(c.DeleteRoom("hall"))
    assert served.users("hall") == {}
    served.send("hall", message("rect", 2, "b"))
    assert served.retained("hall") == {}
    assert served.join("hall", "ann", at).is_first
    served.clock.advance(60)
    assert served.settle() == 1
    for kind in (keys.RETAINED, keys.PRESENCE, keys.ATTENDANCE, keys.DEPARTURE):
        assert Probe(served.ms).rows(kind) == {}


def test_a_transaction_sends_specifies_and_deletes(served: Served) -> None:
    served.ask(
        Transact(
            [
                c.SpecifyRoom("hall", RoomSettings(retained=("rect",))),
                c.SendToRoom("hall", [message("rect", 1, "a"), message("rect", 2, "b")]),
                c.SpecifyRoom("hall", RoomSettings()),
                c.SpecifyRoom("hall", RoomSettings(retained=("rect",))),
                c.SendToRoom("hall", [message("rect", 3, "c")]),
            ]
        )
    )
    assert served.retained("hall") == {("rect", "c"): 3}
    served.ask(
        Transact(
            [
                c.SendToRoom("hall", [message("rect", 4, "d")]),
                c.DeleteRoom("hall"),
                c.SendToRoom("hall", [message("chat", 5)]),
            ]
        )
    )
    assert served.retained("hall") == {}
    assert [one.json() for one in served.records("hall")] == [5]


def test_a_queue_takes_from_rooms_only_if_it_says_so(served: Served) -> None:
    everything = served.ms.queue("everything", sources=["*", "r*", "?oom:hall"], start="earliest")
    rooms = served.ms.queue("rooms", sources="room:h*", start="earliest")
    named = served.ms.queue("named", sources="room:hall", start="earliest")
    served.send("hall", message("chat", 1))
    served.send("kitchen", message("chat", 2))
    assert [len(queue.claim(10)) for queue in (everything, rooms, named)] == [0, 1, 1]
