"""The state of a presence: set without a rejoin, told once, shown to all, gone with its connection."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.errors import InvalidInput, NotFound, TooLarge
from millstream.rooms import commands as c
from millstream.rooms.presence import GRACE_MS
from millstream.rooms.presence_state import STATE_BYTES_MAX, Connection, decode_connection
from tests.unit.rooms.serving import Served, message

GRACE_S = GRACE_MS / 1000


def put(served: Served, user: str, state: Any, connection: str = "1") -> None:
    data = state if isinstance(state, bytes) else msgspec.json.encode(state)
    served.ask(c.SetPresence("hall", user, connection, data))


def states(served: Served) -> dict[str, Any]:
    return {one.user: one.state for one in served.ask(c.GetPresence("hall")).users}


def told(served: Served) -> list[Any]:
    """The states that the room was told of."""
    records = served.records("hall")
    return [one.json()["state"] for one in records if one.headers["type"] == "present"]


@pytest.fixture
def at(served: Served) -> tuple[str, int]:
    at = "one", served.take("one")
    served.join("hall", "ann", at)
    return at


def test_a_state_is_told_and_shown(served: Served, at: tuple[str, int]) -> None:
    assert states(served) == {"ann": {}}
    put(served, "ann", {"typing": True, "mood": "größer 🦆"})
    assert states(served) == {"ann": {"typing": True, "mood": "größer 🦆"}}
    record = served.records("hall")[-1]
    assert record.headers["from"] == "ann"
    assert record.json() == {"user": "ann", "state": {"typing": True, "mood": "größer 🦆"}}
    look = served.ask(c.LookIntoRoom("hall"))
    assert look.presence[0].state == {"typing": True, "mood": "größer 🦆"}


def test_the_same_state_is_told_once(served: Served, at: tuple[str, int]) -> None:
    for state in ({"a": 1}, {"a": 1}, {}, {}, b"null"):
        put(served, "ann", state)
    assert told(served) == [{"a": 1}, {}]
    assert states(served) == {"ann": {}}


def test_of_two_connections_the_last_state_counts(served: Served, at: tuple[str, int]) -> None:
    served.join("hall", "ann", at, "2")
    put(served, "ann", {"page": 1}, "1")
    put(served, "ann", {"page": 1}, "2")
    put(served, "ann", {"page": 2}, "1")
    assert states(served) == {"ann": {"page": 2}}
    served.leave("hall", "ann", at, "1")
    assert states(served) == {"ann": {"page": 2}}, "the page may be loading again"
    served.clock.advance(GRACE_S)
    assert served.settle() == 0
    assert states(served) == {"ann": {"page": 1}}
    assert told(served) == [{"page": 1}, {"page": 2}, {"page": 1}]


def test_a_reload_that_sets_the_same_state_is_silent(served: Served, at: tuple[str, int]) -> None:
    put(served, "ann", {"typing": True})
    served.leave("hall", "ann", at)
    served.join("hall", "ann", at, "2")
    put(served, "ann", {"typing": True}, "2")
    served.clock.advance(GRACE_S)
    assert served.settle() == 0
    assert told(served) == [{"typing": True}]
    assert states(served) == {"ann": {"typing": True}}


def test_who_comes_back_begins_without_a_state(served: Served, at: tuple[str, int]) -> None:
    put(served, "ann", {"typing": True})
    served.leave("hall", "ann", at)
    served.clock.advance(GRACE_S)
    assert served.settle() == 1
    served.join("hall", "ann", at, "2")
    assert states(served) == {"ann": {}}


def test_a_connection_that_joins_again_keeps_or_brings_its_state(
    served: Served, at: tuple[str, int]
) -> None:
    put(served, "ann", {"a": 1})
    served.join("hall", "ann", at)
    assert states(served) == {"ann": {"a": 1}}
    served.ask(c.JoinRoom("hall", *at, "9", "client", "bob", b'{"b":2}'))
    assert states(served) == {"ann": {"a": 1}, "bob": {"b": 2}}
    assert told(served) == [{"a": 1}, {"b": 2}]


def test_a_connection_that_has_ended_sets_nothing(served: Served, at: tuple[str, int]) -> None:
    for user, connection in (("bob", "1"), ("ann", "2")):
        with pytest.raises(NotFound, match="connect again"):
            put(served, user, {}, connection)
    served.leave("hall", "ann", at)
    with pytest.raises(NotFound, match="'ann' has no such open connection to room 'hall'"):
        put(served, "ann", {"a": 1})
    with pytest.raises(NotFound):
        served.ask(c.SetPresence("nowhere", "ann", "1", b"{}"))


@pytest.mark.parametrize("data", [b"[]", b"1", b'"typing"', b"true"])
def test_a_state_is_an_object(served: Served, at: tuple[str, int], data: bytes) -> None:
    with pytest.raises(InvalidInput, match="is a JSON object"):
        put(served, "ann", data)


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": 1e999}', b"\xff", b'{"a":' * 200])
def test_a_state_that_is_not_json_is_refused(
    served: Served, at: tuple[str, int], data: bytes
) -> None:
    with pytest.raises((InvalidInput, TooLarge)):
        put(served, "ann", data)


def test_a_state_has_a_bound(served: Served, at: tuple[str, int]) -> None:
    largest = {"a": "x" * (STATE_BYTES_MAX - 8)}
    put(served, "ann", largest)
    assert states(served) == {"ann": largest}
    with pytest.raises(TooLarge, match=r"1,025 bytes; the limit is 1,024"):
        put(served, "ann", {"a": "x" * (STATE_BYTES_MAX - 7)})
    assert states(served) == {"ann": largest}


def test_only_the_store_writes_messages_about_states(served: Served) -> None:
    with pytest.raises(InvalidInput, match="written by the store alone"):
        served.send("hall", message("present", {"user": "ann", "state": {}}))


def test_rows_of_an_earlier_version_have_no_state() -> None:
    row = msgspec.msgpack.encode(["client", 5, 1, 0])
    assert decode_connection(b"", row) == Connection("client", 5, 1)
