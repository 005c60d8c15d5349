"""Who is in a room, as connections come and go on several servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import millstream
from millstream.embedded.session import open_file
from millstream.errors import Locked
from millstream.rooms.commands import JoinRoom, ListInstances, TakeInstance
from millstream.rooms.presence import FIRST_ROWS, FIRST_USERS
from millstream.server.auth.tokens import create_token
from millstream.server.core import Core
from millstream.server.rooms.hub import Hub
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.testing import Probe, SimulatedClock
from tests.unit.server.rooms.joining import Client, address, joined
from tests.unit.server.test_slow_clients import eventually


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def two(place: Path) -> Iterator[tuple[Serving, Serving]]:
    with running(place, Settings(port=0)) as one, running(place, Settings(port=0)) as other:
        yield one, other


def present(server: Serving, room: str = "canvas") -> dict[str, int]:
    """Who is there, and with how many connections."""
    found = httpx.get(f"{server.url}/rooms/{room}/presence", timeout=60).json()["presence"]
    return {one["user"]: one["connections"] for one in found}


def until_present(server: Serving, expected: dict[str, int]) -> None:
    eventually(lambda: present(server) == expected)


def events(client: Client) -> list[tuple[str, str]]:
    return [
        (one["type"], one["data"]["user"])
        for one in client.messages
        if one["type"] in ("joined", "left")
    ]


def instances(place: Path) -> dict[str, bool]:
    """All instances, and whether each is alive."""
    with millstream.open(place) as ms:
        return {one.name: one.is_alive for one in ms.session.execute(ListInstances())}


def test_a_user_has_joined_once_with_however_many_connections(two: tuple[Serving, Serving]) -> None:
    with joined(two[0], user="ann") as ann, joined(two[1], user="bob") as bob:
        assert bob.welcome["presence"] == [
            {"user": "ann", "since": bob.welcome["presence"][0]["since"], "connections": 1},
            {"user": "bob", "since": bob.welcome["presence"][1]["since"], "connections": 1},
        ]
        ann.until_heard(1, "joined")
        with joined(two[1], user="ann"), joined(two[0], user="bob"):
            assert present(two[0]) == {"ann": 2, "bob": 2}
            ann.settle()
        assert events(ann) == [("joined", "bob")]
        until_present(two[1], {"ann": 1, "bob": 1})


def test_a_user_who_goes_has_left_some_seconds_later(place: Path) -> None:
    clock = SimulatedClock()
    with running(place, Settings(port=0), clock=clock) as server, joined(server) as watcher:
        with joined(server, user="ann"):
            watcher.until_heard(1, "joined")
        until_present(server, {"ann": 0})
        assert server.core is not None
        server.core.store.tend()
        watcher.settle()
        assert events(watcher) == [("joined", "ann")]
        clock.advance(5.1)
        server.core.store.tend()
        watcher.until_heard(1, "left")
        assert present(server) == {}


def test_who_comes_back_soon_was_never_away(place: Path) -> None:
    clock = SimulatedClock()
    with running(place, Settings(port=0), clock=clock) as server, joined(server) as watcher:
        with joined(server, user="ann"):
            pass
        until_present(server, {"ann": 0})
        clock.advance(3)
        with joined(server, user="ann"):
            clock.advance(3)
            assert server.core is not None
            server.core.store.tend()
            watcher.settle()
            assert events(watcher) == [("joined", "ann")]
            assert present(server) == {"ann": 1}


def test_a_crowded_room_greets_with_the_first_users_and_their_number(place: Path) -> None:
    with running(place, Settings(port=0)) as server, millstream.open(place) as ms:
        taken = ms.session.execute(TakeInstance("elsewhere", "somebody"))
        for n in range(FIRST_USERS + 50):
            join = JoinRoom("canvas", taken.name, taken.generation, f"{n}", "c", f"user {n:03}")
            ms.session.execute(join)
        with joined(server, user="zoe") as zoe:
            assert zoe.welcome["users"] == FIRST_USERS + 51
            assert [one["user"] for one in zoe.welcome["presence"]] == [
                f"user {n:03}" for n in range(FIRST_USERS)
            ]
            assert zoe.welcome["as_of"] == zoe.welcome["offset"]
            found = httpx.get(f"{server.url}/rooms/canvas/presence", timeout=60).json()
            assert len(found["presence"]) == FIRST_USERS + 51
            assert found["offset"] == zoe.offset


def test_a_user_with_very_many_connections_is_named_all_the_same(place: Path) -> None:
    with running(place, Settings(port=0)) as server, millstream.open(place) as ms:
        taken = ms.session.execute(TakeInstance("elsewhere", "somebody"))
        for n in range(FIRST_ROWS):
            ms.session.execute(JoinRoom("canvas", taken.name, taken.generation, f"{n}", "c", "ann"))
        with joined(server, user="bob") as bob:
            assert bob.welcome["users"] == 2
            assert [one["user"] for one in bob.welcome["presence"]] == ["ann"]


def test_a_listener_without_a_user_is_unseen(two: tuple[Serving, Serving]) -> None:
    with joined(two[0]) as unseen:
        assert unseen.welcome["user"] == ""
        assert unseen.welcome["presence"] == []
        assert present(two[1]) == {}


def test_a_server_that_stops_frees_its_instance_and_its_users(place: Path) -> None:
    settings = Settings(port=0, instance="one")
    with running(place, settings) as server, joined(server, user="ann"):
        assert instances(place) == {"one": True}
    assert instances(place) == {"one": False}
    with running(place, settings) as server, joined(server, user="ann") as again:
        assert [one["user"] for one in again.welcome["presence"]] == ["ann"]
        again.settle()
        assert events(again) == []


def test_two_servers_cannot_be_the_same_instance(place: Path) -> None:
    with running(place, Settings(port=0, instance="one")):
        with (
            pytest.raises(Locked, match="--instance OTHER"),
            running(place, Settings(port=0, instance="one")),
        ):
            pass
        with running(place, Settings(port=0, instance="two")) as other, joined(other):
            pass


def test_a_server_without_rooms_is_no_instance(place: Path) -> None:
    with running(place, Settings(port=0)) as server:
        httpx.post(
            f"{server.url}/rooms/canvas/messages", json={"messages": [{"type": "draw"}]}, timeout=60
        )
        assert instances(place) == {}


def test_watermarks_follow_what_was_pushed_and_go_with_the_last_listener(place: Path) -> None:
    with running(place, Settings(port=0, instance="one")) as server, millstream.open(place) as ms:
        assert server.core is not None
        log, probe = ms.log("room:canvas"), Probe(server.core.store)
        with joined(server) as one, joined(server) as other:
            one.send(("draw", 1), ("draw", 2), n=1)
            other.until_heard(2)
            (held,) = ms.instances()
            name = f"instance:one#{held.generation}"
            probe.until(lambda: [(c.name, c.floor) for c in log.cursors()] == [(name, 2)])
        probe.until(lambda: not log.cursors())


def test_clients_go_on_where_they_were_after_a_restart_and_the_watermark_holds_nothing(
    place: Path,
) -> None:
    settings = Settings(port=0, instance="one")
    with running(place, settings) as server, joined(server) as one:
        one.send(("draw", 1), n=1)
        one.until_sent(1)
        server.stop()
        one.until_closed()
    with running(place, settings) as server, millstream.open(place) as ms:
        ms.log("room:canvas").append({"x": 1}, headers={"type": "draw"})
        with joined(server, client="me", offset=1) as one, joined(server) as other:
            assert one.until_heard(1) == [{"x": 1}]
            other.settle()
            assert other.heard() == []


def test_a_server_takes_over_what_an_earlier_process_of_its_name_has_left(place: Path) -> None:
    """Also if nothing is known of that process, and no client enters a room."""

    async def test() -> None:
        core = Core(open_file(place), Settings(port=0))
        hub, ask = Hub(core, "one"), core.session.execute
        before = await ask(TakeInstance("one", "a machine that is gone", 200))
        hub.attendance.reclaim()
        await Probe(core.store).until_async(lambda: hub.attendance.is_taken)
        (found,) = await ask(ListInstances())
        assert (found.is_alive, found.generation > before.generation) == (True, True)
        core.closing.set()
        await hub.close()
        await core.close()

    asyncio.run(test())


# Tickets.


def test_a_ticket_fixes_the_user_and_is_only_looked_at_when_its_client_enters(place: Path) -> None:
    clock = SimulatedClock()
    with millstream.open(place) as ms:
        text = create_token(ms, "app", ["room:write:canvas"], clock=clock)[1]
    with running(place, Settings(port=0, auth="on"), clock=clock) as server:
        app = {"authorization": f"Bearer {text}"}

        def ticket(**wanted: object) -> str:
            answer = httpx.post(
                f"{server.url}/rooms/canvas/tickets", json=wanted, headers=app, timeout=60
            )
            assert answer.status_code == 200, answer.text
            return str(answer.json()["ticket"])

        ann, cid = ticket(user="ann"), ticket(user="cid", can="read")
        with joined(server, ticket=ann) as one, joined(server, ticket=cid) as other:
            assert (one.welcome["user"], other.welcome["user"]) == ("ann", "cid")
            clock.advance(61)
            one.send(("draw", 1), n=1)
            assert other.until_heard(1) == [1]
            assert other.messages[-1]["from"] == "ann"
            other.send(("draw", 2), n=1)
            while not other.errors:
                other.take()
            assert other.errors[0]["error"]["status"] == 403
        with pytest.raises(InvalidStatus) as refused:
            connect(address(server, "canvas", ticket=ann), open_timeout=60)
        assert refused.value.response.status_code == 401
        for room, user in (("canvas", "eve"), ("other", None)):
            asked = address(server, room, ticket=ticket(user="ann"), user=user)
            with pytest.raises(InvalidStatus) as refused:
                connect(asked, open_timeout=60)
            assert refused.value.response.status_code == 403
