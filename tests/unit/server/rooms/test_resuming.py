"""A client that comes back elsewhere while its frames are being stored: each is stored once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream.errors import Fenced
from millstream.rooms import commands as c
from millstream.rooms.model import RoomMessage
from millstream.rooms.state import RESUMED_MAX
from millstream.server.rooms.entry import missing_of
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.server.rooms.joining import joined


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Serving, Serving]]:
    place = tmp_path / "store.db"
    with running(place, Settings(port=0)) as one, running(place, Settings(port=0)) as other:
        yield one, other


def stored(place: Path) -> list[Any]:
    with millstream.open(place) as ms:
        return [event.json() for event in ms.room("canvas").listen(0, timeout=0)]


def post(server: Serving, **body: Any) -> int:
    return httpx.post(f"{server.url}/rooms/canvas/messages", json=body, timeout=60).status_code


def test_what_the_first_server_has_not_stored_yet_is_stored_by_the_second_alone(
    two: tuple[Serving, Serving], tmp_path: Path
) -> None:
    one, other = two
    with joined(one) as watcher, joined(other, user="bob"), joined(one, client="a") as a:
        watcher.until_heard(1, "joined")
        a.send(("draw", 1), n=1)
        a.until_sent(1)
        assert one.core is not None
        with one.core.store.hold():
            a.send(("draw", 2), n=2)
            a.send(("draw", 3), n=3)
            a.settle()  # the first server has them
            with joined(other, client="a", offset=a.offset) as again:
                assert again.welcome["sent"] == 1
                again.send(("draw", 2), n=2)
                again.send(("draw", 3), n=3)
                again.until_sent(3)
        while len(a.errors) < 2:
            a.take()
        assert [(one["n"], one["error"]["title"]) for one in a.errors] == [
            (2, "Fenced"),
            (3, "Fenced"),
        ]
        assert watcher.until_heard(3) == [1, 2, 3]
    assert [one for one in stored(tmp_path / "store.db") if type(one) is int] == [1, 2, 3]


def test_what_the_first_server_stored_before_is_found(two: tuple[Serving, Serving]) -> None:
    one, other = two
    with joined(other), joined(one, client="a") as a:
        offset = a.offset
        a.send(("draw", 1), n=1)
        a.until_sent(1)
        with joined(other, client="a", offset=offset) as again:
            assert again.welcome["sent"] == 1
            with joined(one, client="a", offset=offset) as third:
                third.send(("draw", 2), n=2)
                third.until_sent(2)


def test_a_client_that_comes_anew_sends_whatever_it_was_before(
    two: tuple[Serving, Serving],
) -> None:
    one, other = two
    with joined(one), joined(other):
        with joined(one, client="a") as a:
            a.send(("draw", 1), n=1)
            a.until_sent(1)
            offset = a.offset
        with joined(other, client="a", offset=offset) as again:
            again.send(("draw", 2), n=2)
            again.until_sent(2)
        with joined(one, client="a") as anew:
            anew.send(("draw", 3), n=1)
            anew.until_sent(1)


def test_a_request_of_an_earlier_connection_is_refused(two: tuple[Serving, Serving]) -> None:
    one, other = two
    message = {"type": "draw", "data": 1}
    with joined(other), joined(one, client="a") as a:
        before = a.welcome["generation"]
        assert post(one, messages=[message], client="a", n=1, generation=before) == 200
        with joined(other, client="a", offset=a.offset) as again:
            after = again.welcome["generation"]
            assert after > before
            assert post(one, messages=[message], client="a", n=2, generation=before) == 409
            assert post(one, messages=[message], client="b", n=2, generation=before) == 200
            assert post(one, messages=[message], client="a", n=2, generation=after) == 200


def test_alone_a_server_writes_nothing_for_a_client_that_comes_back(tmp_path: Path) -> None:
    with (
        running(tmp_path / "store.db", Settings(port=0)) as server,
        joined(server, client="a") as a,
    ):
        a.send(("draw", 1), n=1)
        a.until_sent(1)
        with joined(server, client="a", offset=a.offset) as again:
            assert again.welcome["generation"] == 0
            again.send(("draw", 2), n=2)
            again.until_sent(2)
        a.send(("draw", 3), n=3)
        a.until_sent(3)


def test_only_so_many_clients_are_remembered(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "store.db") as ms:
        session = ms.session
        message = [RoomMessage("chat")]
        session.execute(c.SendToRoom("r", message))
        for n in range(RESUMED_MAX + 1):
            generation = session.execute(c.ResumeInRoom("r", f"client-{n}", "me", 1))
            assert generation == n + 1
        session.execute(c.SendToRoom("r", message, "", "client-0", 1, 0))
        with pytest.raises(Fenced):
            session.execute(c.SendToRoom("r", message, "", "client-1", 1, 1))
        ms.fold()
    with millstream.open(tmp_path / "store.db") as ms, pytest.raises(Fenced):
        ms.session.execute(c.SendToRoom("r", message, "", "client-1", 1, 1))


def test_what_was_refused_is_named_to_a_client_that_was_not_told(
    two: tuple[Serving, Serving],
) -> None:
    one, other = two
    with joined(one, client="a") as a:
        offset = a.offset
        for n in range(1, 6):
            a.send(("joined" if n in (2, 4) else "draw", n), n=n)
        a.until_sent(5)
    with joined(other, client="a", offset=offset, sent=1) as again:
        assert (again.welcome["sent"], again.welcome["missing"]) == (5, [2, 4])
    with joined(other, client="a", offset=offset, sent=3) as again:
        assert again.welcome["missing"] == [4]
    with joined(other, client="a", offset=again.offset, sent=5) as again:
        assert again.welcome["missing"] == []


def test_only_so_many_numbers_are_named() -> None:
    assert missing_of({5_000}, 0) == [*range(4_000, 5_000)]
    assert missing_of({5_000, 4_999}, 4_998) == []
    assert missing_of(set(), 7) == []
