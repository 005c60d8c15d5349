"""Rooms as server-sent events: the same frames, and a browser that resumes by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.server.rooms.joining import joined
from tests.unit.server.test_slow_clients import eventually

Event = tuple[int | None, dict[str, Any]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with running(tmp_path / "store.db", Settings(port=0)) as one:
        yield one


@contextmanager
def listening(
    server: Serving, headers: dict[str, str] | None = None, **query: Any
) -> Iterator[Iterator[Event]]:
    """The events of a room: each one's id, and what it says."""
    where = f"{server.url}/rooms/canvas"
    given = {"live": "sse", **query}
    with httpx.stream("GET", where, params=given, headers=headers, timeout=60) as answer:
        answer.raise_for_status() if answer.status_code < 400 else answer.read()
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[Event]:
    number: int | None = None
    for line in lines:
        if line.startswith("id: "):
            number = int(line.removeprefix("id: "))
        elif line.startswith("data: "):
            yield number, json.loads(line.removeprefix("data: "))
            number = None


def post(server: Serving, *data: Any, **more: Any) -> int:
    body = {"messages": [{"type": "draw", "data": one} for one in data], **more}
    answer = httpx.post(f"{server.url}/rooms/canvas/messages", json=body, timeout=60)
    return int(answer.raise_for_status().json()["offset"])


def test_the_same_frames_come_as_events(server: Serving) -> None:
    with listening(server, user="ann", client="me") as events, joined(server, user="bob") as bob:
        _, first = next(events)
        assert first["welcome"]["user"] == "ann"
        assert first["retained"] == []
        assert bob.welcome["presence"][0]["user"] == "ann"
        number, frame = next(events)
        assert frame["messages"][0]["type"] == "joined"
        assert number == frame["offset"]
        bob.send(("draw", {"x": "line\nbreak"}), n=1)
        assert next(events)[1]["messages"][0]["data"] == {"x": "line\nbreak"}
        post(server, "mine", client="me", user="ann")
        assert bob.until_heard(1) == ["mine"]
        bob.send(("draw", 3), n=2)
        assert next(events)[1]["messages"][0]["data"] == 3


def test_data_with_line_breaks_stays_one_event(server: Serving) -> None:
    with listening(server) as events:
        next(events)
        text = '{"messages": [{"type": "draw", "data": {\n "a":\r\n 1\n}}]}'
        headers = {"content-type": "application/json"}
        where = f"{server.url}/rooms/canvas/messages"
        httpx.post(where, content=text, headers=headers, timeout=60).raise_for_status()
        assert next(events)[1]["messages"][0]["data"] == {"a": 1}


def test_a_client_resumes_by_offset_or_by_the_last_events_id(server: Serving) -> None:
    with listening(server, client="me") as events:
        offset = next(events)[1]["welcome"]["offset"]
        post(server, 1)
        last, frame = next(events)
    assert last == frame["offset"]
    post(server, 2, 3)
    with listening(server, client="me", offset=offset) as events:
        next(events)
        assert [one["data"] for one in next(events)[1]["messages"]] == [1, 2, 3]
    with listening(server, {"last-event-id": str(last)}, client="me", offset=offset) as events:
        assert next(events)[1]["welcome"]["offset"] == last
        assert [one["data"] for one in next(events)[1]["messages"]] == [2, 3]


def test_a_gap_and_a_wrong_offset_are_told(server: Serving) -> None:
    post(server, *range(10))
    httpx.post(
        f"{server.url}/logs/room:canvas/truncate", json={"before": 5}, timeout=60
    ).raise_for_status()
    with listening(server, offset=1) as events:
        next(events)
        number, frame = next(events)
        assert (number, frame["gap"]) == (5, {"from": 1, "to": 5})
        assert len(next(events)[1]["messages"]) == 5
    answer = httpx.get(
        f"{server.url}/rooms/canvas", params={"live": "sse", "offset": 99}, timeout=60
    )
    assert (answer.status_code, answer.json()["title"]) == (416, "OutOfRange")


def test_who_leaves_is_gone_and_a_stream_ends_after_the_time_that_was_asked_for(
    server: Serving,
) -> None:
    with listening(server, user="ann") as events:
        next(events)
    with listening(server, user="bob", seconds=0.1) as events:
        assert len([*events]) == 1
    where = f"{server.url}/rooms/canvas/presence"
    eventually(
        lambda: (
            {one["connections"] for one in httpx.get(where, timeout=60).json()["presence"]} == {0}
        )
    )


def test_a_stopping_server_ends_the_stream(tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    with running(place, Settings(port=0)) as server, listening(server) as events:
        next(events)
        server.stop()
        assert [*events] == []


def test_a_slow_reader_of_events_is_told_of_a_gap(server: Serving) -> None:
    body = {"waiting_bytes_max": 200_000, "messages_per_second": 0}
    httpx.put(f"{server.url}/rooms/canvas/settings", json=body, timeout=60).raise_for_status()
    with listening(server) as events:
        next(events)
        for first in range(0, 400, 100):
            post(server, *[[n, "x" * 60_000] for n in range(first, first + 100)])
        seen, gaps = [], []
        while not gaps and len(seen) < 400:
            frame = next(events)[1]
            seen += [one["data"][0] for one in frame.get("messages", [])]
            gaps += [frame["gap"]] if "gap" in frame else []
        assert seen == [*range(len(seen))]
        assert gaps
        assert gaps[0]["from"] == len(seen)
        post(server, ["again", ""])
        while True:
            frame = next(events)[1]
            if [one["data"][0] for one in frame.get("messages", [])] == ["again"]:
                break
