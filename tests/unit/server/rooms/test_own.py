"""A server that relays no other process's messages: its listeners hear all that comes in there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import millstream
from millstream.server.rooms import own_records as own
from millstream.server.rooms.own_records import OwnOffsets
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock
from tests.unit.server.rooms.joining import joined
from tests.unit.server.test_slow_clients import eventually

ALONE = Settings(port=0, rooms_across=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def two(place: Path) -> Iterator[tuple[Serving, Serving]]:
    with running(place, ALONE) as one, running(place, ALONE) as other:
        yield one, other


def post(server: Serving, path: str, body: object) -> None:
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=60)
    assert answer.status_code in (200, 201), answer.text


def test_only_what_is_stored_through_it_is_relayed(two: tuple[Serving, Serving]) -> None:
    one, other = two
    with joined(one, client="a") as a, joined(one) as near, joined(other) as far:
        for n in range(20):
            post(other, "/rooms/canvas/messages", {"messages": [{"type": "draw", "data": -n}]})
            a.send(("draw", n), n=n)
        assert near.until_heard(20) == [*range(20)]
        near.settle()
        assert near.heard() == [*range(20)]
        assert far.until_heard(20) == [-n for n in range(20)]


def test_messages_of_transactions_and_appends_are_relayed(
    two: tuple[Serving, Serving], place: Path
) -> None:
    one, other = two
    with joined(one) as near, joined(other) as far:
        with millstream.open(one.url) as ms:
            with ms.transaction() as tx:
                tx.append("orders", {"id": 1})
                tx.send("canvas", "order", 1)
                tx.send("canvas", "order", 2)
            ms.log("room:canvas").append({"n": 3})
        with millstream.open(place) as elsewhere:
            elsewhere.room("canvas").send("draw", "of another process")
        post(one, "/rooms/canvas/messages", {"messages": [{"type": "draw", "data": 4}]})
        assert near.until_heard(4) == [1, 2, {"n": 3}, 4]
        post(other, "/rooms/canvas/messages", {"messages": [{"type": "draw", "data": 5}]})
        assert far.until_heard(1) == [5]


def test_who_comes_and_goes_is_told_everywhere(place: Path) -> None:
    clock = SimulatedClock()
    with (
        running(place, ALONE, clock=clock) as one,
        running(place, ALONE, clock=clock) as other,
        joined(one) as near,
        joined(other) as far,
    ):
        with joined(one, user="ann"):
            for watcher in (near, far):
                assert watcher.until_heard(1, "joined") == [{"user": "ann"}]
        where = f"{one.url}/rooms/canvas/presence"
        eventually(lambda: httpx.get(where, timeout=60).json()["presence"][0]["connections"] == 0)
        clock.advance(5.1)
        assert other.core is not None
        other.core.store.tend()
        for watcher in (near, far):
            assert watcher.until_heard(1, "left") == [{"user": "ann"}]


def test_a_client_that_resumes_gets_what_was_stored_here(two: tuple[Serving, Serving]) -> None:
    one, other = two
    with joined(one), joined(one) as writer, joined(one, client="r") as reader:
        offset = reader.offset
        reader.socket.close()
        for n in range(5):
            writer.send(("draw", n), n=n)
            writer.until_sent(n)
            post(other, "/rooms/canvas/messages", {"messages": [{"type": "draw", "data": "no"}]})
        with joined(one, client="r", offset=offset) as again:
            assert again.until_heard(5) == [*range(5)]
            again.settle()
            assert len(again.heard()) == 5


def test_a_room_that_is_made_again_is_another_one(two: tuple[Serving, Serving]) -> None:
    one, other = two
    post(one, "/rooms/canvas/messages", {"messages": [{"type": "draw", "data": 1}] * 5})
    with joined(one) as first:
        httpx.delete(f"{one.url}/rooms/canvas", timeout=60).raise_for_status()
        first.until_closed()
    with joined(one) as near:
        post(other, "/rooms/canvas/messages", {"messages": [{"type": "draw", "data": "no"}]})
        post(one, "/rooms/canvas/messages", {"messages": [{"type": "draw", "data": 2}]})
        assert near.until_heard(1) == [2]


def test_offsets_are_remembered_as_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "RANGES_MAX", 4)
    found = OwnOffsets()
    found.note(2, 4)
    found.note(4, 5)
    found.note(7, 8)
    assert [n for n in range(10) if n in found] == [2, 3, 4, 7]
    for n in range(10, 16, 2):
        found.note(n, n + 1)
    assert [n for n in range(20) if n in found] == [*range(8), 10, 12, 14]
