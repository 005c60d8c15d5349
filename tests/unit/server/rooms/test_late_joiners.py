"""Late joiners: a history of so many messages, or all messages since an offset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import millstream
from millstream.server.rooms.entry import parse_query
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.server.rooms.joining import address, joined


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def server(place: Path) -> Iterator[Serving]:
    with running(place, Settings(port=0)) as serving:
        yield serving


def fill(server: Serving, count: int, type: str = "draw") -> None:
    with millstream.open(server.url) as ms:
        ms.room("canvas").send_many([(type, number) for number in range(count)])


@pytest.mark.parametrize(("history", "expected"), [(1, [9]), (3, [7, 8, 9]), (50, [*range(10)])])
def test_the_last_messages_come_first(server: Serving, history: int, expected: list[int]) -> None:
    fill(server, 10)
    with joined(server, history=history) as late:
        assert late.welcome["as_of"] == 10
        assert late.until_heard(len(expected)) == expected
        late.settle()
        assert late.heard() == expected
        assert late.gaps == []
        fill(server, 1, "chat")
        assert late.until_heard(len(expected) + 1) == [*expected, 0]


def test_presence_and_other_types_are_not_counted(server: Serving) -> None:
    with joined(server, user="ann"):
        fill(server, 5)
        fill(server, 300, "noise")
        with joined(server, user="bob"), joined(server, history=3, types="draw") as late:
            assert late.until_heard(3, "draw") == [2, 3, 4]
            late.settle()
            assert late.heard() == [2, 3, 4]


def test_a_client_gets_its_own_earlier_messages_and_no_echo(server: Serving) -> None:
    with joined(server, client="page") as first:
        first.send(("draw", "before"), n=1)
        first.until_sent(1)
    with joined(server, client="page", history=5) as again:
        assert again.until_heard(1) == ["before"]
        again.send(("draw", "after"), n=2)
        again.until_sent(2)
        again.settle()
        assert again.heard() == ["before"]
    with joined(server, client="page", since=0) as third:
        assert third.until_heard(2) == ["before", "after"]


def test_all_messages_since_an_offset_come(server: Serving) -> None:
    fill(server, 10)
    with joined(server, since=7) as late, joined(server, since=10) as latest:
        assert late.until_heard(3) == [7, 8, 9]
        latest.settle()
        assert latest.messages == []
        assert late.retained == latest.retained == []


def test_offsets_that_have_expired_are_a_gap(server: Serving) -> None:
    fill(server, 10)
    with millstream.open(server.url) as ms:
        ms.room("canvas").log.truncate(before=6)
    with joined(server, since=2) as late:
        assert late.until_heard(4) == [6, 7, 8, 9]
        assert late.gaps == [{"from": 2, "to": 6}]
    with joined(server, history=9) as other:
        assert other.until_heard(4) == [6, 7, 8, 9]
        assert other.gaps == []


def test_many_late_joiners_beside_a_listener_miss_nothing(server: Serving) -> None:
    with joined(server) as listener:
        fill(server, 250)
        with joined(server, history=200) as one, joined(server, since=100) as two:
            fill(server, 10, "more")
            assert one.until_heard(210) == [*range(50, 250), *range(10)]
            assert two.until_heard(160) == [*range(100, 250), *range(10)]
        assert listener.until_heard(260) == [*range(250), *range(10)]


def test_a_history_comes_as_events_and_a_resume_does_not_repeat_it(server: Serving) -> None:
    fill(server, 10)
    url = f"{server.url}/rooms/canvas?live=sse&seconds=1&history=2"
    text = httpx.get(url, timeout=30).text
    assert '"data":8' in text
    assert '"data":7' not in text
    again = httpx.get(url, headers={"last-event-id": "10"}, timeout=30).text
    assert '"data":8' not in again


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"history": "-1"}, "history is a number of messages from 0 to 1,000"),
        ({"history": "many"}, "not 'many'"),
        ({"history": "1001"}, "not 1,001"),
        ({"since": "-5"}, "since is a whole number"),
        ({"since": "1.5"}, "since is a whole number"),
        ({"since": "1", "history": "1"}, "since or history, not both"),
        ({"offset": "1", "history": "1"}, "offset or history, not both"),
    ],
)
def test_a_wrong_place_to_begin_is_refused(
    server: Serving, query: dict[str, Any], reason: str
) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(address(server, "canvas", **query), open_timeout=60),
    ):
        pass
    assert refused.value.response.status_code == 422
    assert reason in refused.value.response.body.decode()


def test_an_offset_behind_the_end_is_refused(server: Serving) -> None:
    fill(server, 2)
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(address(server, "canvas", since=3), open_timeout=60),
    ):
        pass
    assert refused.value.response.status_code == 416
    assert "ends at 2, before 3" in refused.value.response.body.decode()


def test_an_event_that_came_already_is_where_a_client_resumes() -> None:
    request = parse_query("history=5", last_event="7")
    assert (request.offset, request.history, request.since) == (7, 0, None)
