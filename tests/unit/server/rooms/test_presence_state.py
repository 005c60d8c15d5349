"""States of presences at servers: by frames and requests, at every server, within rights and limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream.server.auth.tokens import create_token
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.server.rooms.joining import Client, joined


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Serving, Serving]]:
    place = tmp_path / "store.db"
    with running(place, Settings(port=0)) as one, running(place, Settings(port=0)) as other:
        yield one, other


def until_states(client: Client, count: int) -> list[Any]:
    return client.until_heard(count, "present")


def until_refused(client: Client) -> dict[str, Any]:
    while not client.errors:
        client.take()
    return client.errors.pop()


def test_a_state_reaches_listeners_of_all_servers_and_later_joiners(
    two: tuple[Serving, Serving],
) -> None:
    one, other = two
    with joined(one, user="ann") as ann, joined(other, user="bob", types="chat") as bob:
        assert "state" not in ann.welcome["presence"][0]
        ann.say({"presence": {"typing": True}})
        expected = {"user": "ann", "state": {"typing": True}}
        assert until_states(bob, 1) == [expected]
        assert until_states(ann, 1) == [expected], "it is told to all, as joined and left are"
        with joined(other, user="cleo") as late:
            shown = {each["user"]: each.get("state") for each in late.welcome["presence"]}
            assert shown == {"ann": {"typing": True}, "bob": None, "cleo": None}
        listed = httpx.get(f"{other.url}/rooms/canvas/presence").json()["presence"]
        assert [each["state"] for each in listed[:2]] == [{"typing": True}, {}]
        with millstream.open(one.url) as ms:
            assert ms.room("canvas").presence()[0].state == {"typing": True}
        ann.say({"presence": None})
        assert until_states(bob, 2)[1] == {"user": "ann", "state": {}}


def test_of_many_states_in_a_row_the_last_is_stored(two: tuple[Serving, Serving]) -> None:
    one, other = two
    with joined(one, user="ann") as ann, joined(other, user="bob") as bob:
        for number in range(100):
            ann.say({"presence": {"number": number}})
        while not (heard := bob.heard("present")) or heard[-1]["state"] != {"number": 99}:
            bob.take()
        numbers = [each["state"]["number"] for each in bob.heard("present")]
        assert numbers == sorted(numbers)


def test_a_listener_by_events_sets_its_state_by_a_request(two: tuple[Serving, Serving]) -> None:
    one, other = two
    with joined(one, user="ann") as ann:
        body = {"connection": ann.welcome["connection"], "user": "ann", "state": {"away": True}}
        for server in (one, other):
            answer = httpx.put(f"{server.url}/rooms/canvas/presence", json=body)
            assert (answer.status_code, answer.json()) == (200, {"state": {"away": True}})
        assert until_states(ann, 1) == [{"user": "ann", "state": {"away": True}}]
        wrong = httpx.put(f"{one.url}/rooms/canvas/presence", json={**body, "connection": "x"})
        assert (wrong.status_code, wrong.json()["title"]) == (404, "NotFound")
        large = httpx.put(
            f"{one.url}/rooms/canvas/presence", json={**body, "state": {"a": "x" * 2_000}}
        )
        assert (large.status_code, large.json()["data"]["limit"]) == (413, 1_024)


@pytest.mark.parametrize(
    ("state", "title"), [([1], "InvalidInput"), ({"a": "x" * 2_000}, "TooLarge")]
)
def test_a_wrong_state_is_refused_and_the_connection_stays(
    two: tuple[Serving, Serving], state: Any, title: str
) -> None:
    with joined(two[0], user="ann") as ann:
        ann.say({"presence": state})
        refused = until_refused(ann)
        assert (refused["error"]["title"], refused["presence"]) == (title, True)
        ann.say({"presence": {"fine": 1}})
        assert until_states(ann, 1)[0]["state"] == {"fine": 1}


def test_who_is_unseen_has_no_state(two: tuple[Serving, Serving]) -> None:
    with joined(two[0]) as unseen:
        unseen.say({"presence": {"typing": True}})
        assert "join with a user" in until_refused(unseen)["error"]["detail"]


def test_who_may_only_listen_sets_no_state(tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    with millstream.open(place) as ms:
        create_token(ms, "any", ["room:read:canvas"])
        reader = ms.room("canvas").ticket("ann", can="read").ticket
        writer = ms.room("canvas").ticket("bob").ticket
    with (
        running(place, Settings(port=0, auth="on")) as server,
        joined(server, ticket=reader) as ann,
        joined(server, ticket=writer) as bob,
    ):
        ann.say({"presence": {"typing": True}})
        assert until_refused(ann)["error"]["title"] == "Denied"
        url = f"{server.url}/rooms/canvas/presence"
        body = {"connection": ann.welcome["connection"], "user": "ann", "state": {}}
        for ticket in (reader, writer):
            headers = {"authorization": f"Bearer {ticket}"}
            assert httpx.put(url, json=body, headers=headers).status_code == 403
        bob.say({"presence": {"typing": True}})
        assert until_states(ann, 1)[0]["user"] == "bob"


def test_states_count_towards_the_rate_of_a_connection(two: tuple[Serving, Serving]) -> None:
    with millstream.open(two[0].url) as ms:
        ms.room("canvas").specify(messages_per_second=2)
    with joined(two[0], user="ann") as ann:
        for number in range(4):
            ann.say({"presence": {"number": number}})
        assert until_refused(ann)["error"]["title"] == "Overloaded"
