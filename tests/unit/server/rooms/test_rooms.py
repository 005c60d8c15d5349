"""Rooms over WebSockets, on one server and on two that share a store."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import millstream
from millstream.rooms.commands import SpecifyRoom
from millstream.rooms.settings import RoomSettings
from millstream.server.auth.register import Registrar
from millstream.server.auth.tokens import create_token
from millstream.server.rooms.client import STORING_MAX
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.server.rooms.joining import address, joined


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Serving, Serving]]:
    """Two servers on one file."""
    place = tmp_path / "store.db"
    with running(place, Settings(port=0)) as one, running(place, Settings(port=0)) as other:
        yield one, other


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with running(tmp_path / "store.db", Settings(port=0)) as one:
        yield one


def specify(server: Serving, room: str = "canvas", **settings: Any) -> None:
    answer = httpx.put(f"{server.url}/rooms/{room}/settings", json=settings, timeout=60)
    assert answer.status_code == 200, answer.text


def send(server: Serving, *messages: dict[str, Any], room: str = "canvas", **more: Any) -> int:
    body = {"messages": messages, **more}
    answer = httpx.post(f"{server.url}/rooms/{room}/messages", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["offset"])


# Everybody else hears it, once, in order.


def test_all_others_hear_a_message_and_its_sender_does_not(
    two: tuple[Serving, Serving],
) -> None:
    with (
        joined(two[0], user="ann") as ann,
        joined(two[0], user="bob") as bob,
        joined(two[1], user="cid") as cid,
    ):
        ann.send(("draw", {"x": 1}), ("draw", {"x": 2}, "key"), n=1)
        first = ann.until_sent(1)
        for other in (bob, cid):
            other.until_heard(2)
            other.settle()
            assert other.heard() == [{"x": 1}, {"x": 2}]
            one, two_ = [one for one in other.messages if one["type"] == "draw"]
            assert (one["offset"], two_["offset"]) == (first, first + 1)
            assert (one["from"], one.get("key"), two_["key"]) == ("ann", None, "key")
            assert one["time"] > 1_600_000_000_000
        ann.settle()
        assert ann.heard() == []


def test_two_connections_of_one_user_are_two_clients(server: Serving) -> None:
    with joined(server, user="ann") as one, joined(server, user="ann") as other:
        one.send(("draw", 1), n=1)
        assert other.until_heard(1) == [1]
        assert one.welcome["client"] != other.welcome["client"]


def test_every_listener_hears_the_messages_of_all_servers_in_one_order(
    two: tuple[Serving, Serving],
) -> None:
    count = 50
    with (
        joined(two[0], client="a") as a,
        joined(two[1], client="b") as b,
        joined(two[0]) as left,
        joined(two[1]) as right,
    ):
        for n in range(1, count + 1):
            a.send(("draw", ["a", n]), n=n)
            b.send(("draw", ["b", n]), n=n)
        for one in (left, right):
            one.until_heard(2 * count)
            offsets = [message["offset"] for message in one.messages]
            assert offsets == sorted(set(offsets))
        assert left.heard() == right.heard()
        for who in "ab":
            assert [n for sender, n in left.heard() if sender == who] == [*range(1, count + 1)]
        a.until_sent(count)
        a.until_heard(count)
        assert {sender for sender, _ in a.heard()} == {"b"}


def test_a_frame_is_one_commit(server: Serving) -> None:
    with joined(server) as one, joined(server) as other:
        assert server.core is not None
        before = server.core.store.stats()["sequence"]
        one.send(*[("draw", n) for n in range(50)], n=1)
        one.until_sent(1)
        assert server.core.store.stats()["sequence"] == before + 1
        other.until_heard(50)


def test_messages_of_requests_and_of_python_are_heard(
    two: tuple[Serving, Serving], tmp_path: Path
) -> None:
    with joined(two[0], client="me") as one, millstream.open(tmp_path / "store.db") as ms:
        send(two[0], {"type": "draw", "data": 1}, user="ann")
        send(two[1], {"type": "draw", "data": 2})
        ms.log("room:canvas").append(b"\xff\x00", headers={"type": "raw"})
        ms.log("room:canvas").append("plain text")
        ms.log("room:canvas").append({"json": True})
        send(two[1], {"type": "draw", "data": "mine"}, client="me", n=1)
        send(two[1], {"type": "draw", "data": "last"})
        one.until_heard(6)
        assert one.heard() == [1, 2, {"base64": "/wA="}, "plain text", {"json": True}, "last"]
        assert [message["type"] for message in one.messages[:5]] == [
            *("draw", "draw", "raw", "record", "record")
        ]


def test_a_room_is_a_log(server: Serving) -> None:
    send(server, {"type": "draw", "data": {"x": 1}, "key": "k"}, user="ann")
    (found,) = httpx.get(f"{server.url}/logs/room:canvas/records", timeout=60).json()["records"]
    assert json.loads(b64decode(found["base64"])) == {"x": 1}
    assert found["headers"] == {"type": "draw", "from": "ann"}


def test_only_the_types_that_were_asked_for_come_and_who_comes_and_goes(server: Serving) -> None:
    with joined(server, types="text,draw") as one, joined(server, user="ann") as other:
        other.send(("draw", 1), ("noise", 2), ("text", 3), n=1)
        other.send(("noise", 4), n=2)
        other.send(("text", 5), n=3)
        one.until_heard(3)
        assert one.heard() == [1, 3, 5]
        assert one.heard("joined") == [{"user": "ann"}]


def test_names_with_slashes_and_other_characters_are_rooms(server: Serving) -> None:
    for name in ("a/b", "ünïcode ✓", "50%"):
        with joined(server, name) as one, joined(server, name) as other:
            assert one.welcome["room"] == name
            one.send(("draw", name), n=1)
            assert other.until_heard(1) == [name]


# Conflation.


def test_of_pointers_the_latest_of_each_client_comes_with_each_tick(server: Serving) -> None:
    specify(server, tick=0.2)
    with joined(server) as a, joined(server) as b, joined(server) as other:
        for n in range(1, 31):
            a.send(("pointer", ["a", n]), n=n)
            b.send(("pointer", ["b", n]))
        a.until_sent(30)
        while len([data for data in other.heard("pointer") if data[1] == 30]) < 2:
            other.take()
        found = other.heard("pointer")
        assert len(found) <= 6
        for who in "ab":
            numbers = [n for sender, n in found if sender == who]
            assert numbers == sorted(numbers)
        assert {one["sent"] for one in a.sent} == {*range(1, 31)}


def test_what_is_not_conflated_comes_whole(server: Serving) -> None:
    specify(server, tick=0.5)
    with joined(server) as one, joined(server) as other:
        for n in range(1, 21):
            one.send(("draw", n), ("pointer", n), n=n)
        assert other.until_heard(20, "draw") == [*range(1, 21)]


# Retained values.


def test_a_joiner_gets_what_is_retained_and_then_what_comes(two: tuple[Serving, Serving]) -> None:
    specify(two[0], retained=["shape"])
    with joined(two[0], user="ann") as ann:
        ann.send(("shape", 1, "a"), ("shape", 2, "b"), ("shape", 3, "a"), ("text", "no"), n=1)
        ann.send(("shape", None, "b", True), n=2)
        ann.until_sent(2)
        with joined(two[1]) as late:
            assert late.retained is not None
            (kept,) = late.retained
            assert (kept["type"], kept["key"], kept["data"], kept["from"]) == (
                "shape",
                "a",
                3,
                "ann",
            )
            assert kept["offset"] < late.offset
            ann.send(("shape", 4, "c"), n=3)
            assert late.until_heard(1) == [4]
            assert late.messages[0]["offset"] >= late.welcome["offset"]
            ann.send(("shape", None, "c", True), n=4)
            late.until_heard(2)
            assert late.messages[-1]["deleted"] is True


def test_joining_while_others_write_loses_and_doubles_nothing(
    two: tuple[Serving, Serving],
) -> None:
    specify(two[0], retained=["shape"], messages_per_second=0)
    with joined(two[0]) as writer:
        for n in range(1, 61):
            writer.send(("shape", n, f"key {n}"), n=n)
            if n % 10 == 0:
                with joined(two[n // 10 % 2]) as late:
                    assert late.retained is not None
                    kept = [one["data"] for one in late.retained]
                    writer.send(("shape", 0, "end"), n=1_000 + n)
                    while 0 not in late.heard():
                        late.take()
                    found = kept + late.heard()
                    assert sorted(one for one in found if one) == [*range(1, n + 1)]
                writer.send(("shape", None, "end", True), n=2_000 + n)


# Resuming.


def test_a_client_resumes_on_the_other_server(two: tuple[Serving, Serving]) -> None:
    with joined(two[0]) as writer:
        with joined(two[0], client="me") as one:
            writer.send(("draw", 1), n=1)
            one.until_heard(1)
            offset = one.offset
        writer.send(("draw", 2), ("draw", 3), n=2)
        writer.until_sent(2)
        with joined(two[1], client="me", offset=offset) as again:
            assert again.until_heard(2) == [2, 3]
            assert again.welcome["offset"] == offset
            assert again.retained is None
            writer.send(("draw", 4), n=3)
            assert again.until_heard(3) == [2, 3, 4]


def test_a_client_that_had_received_nothing_resumes_too(tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    with running(place, Settings(port=0)) as server, joined(server, client="me") as one:
        offset = one.offset
    with running(place, Settings(port=0)) as server:
        send(server, {"type": "draw", "data": 1})
    with (
        running(place, Settings(port=0)) as server,
        joined(server, client="me", offset=offset) as one,
    ):
        assert one.until_heard(1) == [1]


def test_a_resuming_client_learns_what_of_its_own_was_stored(two: tuple[Serving, Serving]) -> None:
    with joined(two[0], client="me") as one:
        offset = one.offset
        one.send(("draw", 1), n=1)
        one.send(("draw", 2), n=2)
        one.until_sent(2)
    with joined(two[1], client="me", offset=offset, sent=0) as again:
        assert again.welcome["sent"] == 2
        again.settle()
        assert again.heard() == []
    with joined(two[1], client="other", offset=offset) as other:
        assert other.welcome["sent"] is None
        assert other.until_heard(2) == [1, 2]


def test_a_long_backlog_is_read_in_order_while_others_write(server: Serving) -> None:
    for first in range(0, 1_000, 100):
        send(server, *[{"type": "draw", "data": n} for n in range(first, first + 100)])
    with joined(server) as writer, joined(server, offset=0, client="me") as late:
        for n in range(1, 11):
            writer.send(("draw", 999 + n), n=n)
        assert late.until_heard(1_010) == [*range(1_010)]


def test_what_has_expired_is_a_gap_with_what_is_retained(server: Serving) -> None:
    specify(server, retained=["shape"])
    send(server, *[{"type": "draw", "data": n} for n in range(10)])
    send(server, {"type": "shape", "data": "kept", "key": "k"})
    httpx.post(
        f"{server.url}/logs/room:canvas/truncate", json={"before": 6}, timeout=60
    ).raise_for_status()
    with joined(server, offset=2, client="me") as late:
        late.until_heard(5)
        assert late.gaps == [{"from": 2, "to": 6}]
        assert late.heard() == [6, 7, 8, 9, "kept"]
        assert late.retained is not None
        assert [one["data"] for one in late.retained] == ["kept"]


def test_an_offset_that_a_room_has_not_come_to_is_refused(server: Serving) -> None:
    send(server, {"type": "draw", "data": 1})
    with pytest.raises(InvalidStatus) as refused:
        connect(address(server, "canvas", offset=5), open_timeout=60)
    assert refused.value.response.status_code == 416
    problem = json.loads(refused.value.response.body or b"{}")
    assert problem["title"] == "OutOfRange"


def test_listeners_of_a_room_that_is_deleted_are_sent_away(two: tuple[Serving, Serving]) -> None:
    send(two[0], {"type": "draw", "data": 1})
    with joined(two[0]) as one, joined(two[1]) as other:
        assert httpx.delete(f"{two[0].url}/rooms/canvas", timeout=60).json() == {"deleted": True}
        for client in (one, other):
            assert client.until_closed() == 1012


# Limits.


def test_a_frame_that_is_wrong_is_refused_and_the_connection_goes_on(server: Serving) -> None:
    specify(server, message_bytes_max=100)
    wrong: list[tuple[Any, int]] = [
        ("no json", 400),
        (json.dumps([1]), 422),
        (json.dumps({"send": [{"data": 1}], "n": 1}), 422),
        (json.dumps({"send": [], "n": 1}), 422),
        (json.dumps({"unknown": 1}), 422),
        (json.dumps({"send": [{"type": "joined", "data": {"user": "x"}}], "n": 1}), 422),
        (json.dumps({"send": [{"type": "draw", "data": "x" * 200}], "n": 1}), 413),
        (json.dumps({"send": [{"type": "draw", "deleted": True}], "n": 1}), 422),
    ]
    with joined(server, user="ann") as one, joined(server) as other:
        for text, status in wrong:
            one.socket.send(text)
            while not one.errors:
                one.take()
            error = one.errors.pop()
            assert error["error"]["status"] == status, error
        one.send(("draw", "fine"), n=2)
        assert other.until_heard(1) == ["fine"]
        assert other.heard("joined") == []


def test_a_binary_frame_ends_the_connection(server: Serving) -> None:
    with joined(server) as one:
        one.socket.send(b"\x00")
        assert one.until_closed() == 1003


def test_too_many_messages_per_second_are_refused(server: Serving) -> None:
    specify(server, messages_per_second=10)
    with joined(server) as one, joined(server) as other:
        one.send(*[("draw", n) for n in range(10)], n=1)
        one.until_sent(1)
        one.send(*[("draw", n) for n in range(10)], n=2)
        while not one.errors:
            one.take()
        assert one.errors[0]["error"]["status"] == 429
        assert one.errors[0]["n"] == 2
        other.until_heard(10)
        other.settle()
        assert len(other.heard()) == 10


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"offset": "x"}, 422),
        ({"offset": -1}, 422),
        ({"offset": 2**60}, 422),
        ({"client": "with space"}, 422),
        ({"client": "x" * 65}, 422),
        ({"user": "x" * 300}, 422),
        ({"unknown": 1}, 422),
    ],
)
def test_a_wrong_address_is_refused_as_a_request_is(
    server: Serving, query: dict[str, Any], status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(address(server, "canvas", **query), open_timeout=60)
    assert refused.value.response.status_code == status


# Settings take effect.


def test_changed_settings_hold_at_once_on_all_servers(
    two: tuple[Serving, Serving], tmp_path: Path
) -> None:
    with joined(two[0]) as one, millstream.open(tmp_path / "store.db") as ms:
        one.send(("draw", 1), n=1)
        one.until_sent(1)
        ms.session.execute(SpecifyRoom("canvas", RoomSettings(messages_per_second=1)))
        for n in range(2, 2_000):
            one.send(("draw", n), n=n)
            one.take()
            if one.errors:
                break
        assert one.errors


# Rights.


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Serving, dict[str, str]]]:
    place = tmp_path / "store.db"
    rights = ("room:read:canvas", "room:write:canvas", "log:admin", "room:admin:canvas")
    with millstream.open(place) as ms:
        texts = {right: create_token(ms, right, [right])[1] for right in rights}
    with running(place, Settings(port=0, auth="on")) as server:
        yield server, texts


def test_who_may_read_may_listen_and_who_may_write_may_send(
    guarded: tuple[Serving, dict[str, str]],
) -> None:
    server, texts = guarded
    read, write, log, _ = [{"authorization": f"Bearer {text}"} for text in texts.values()]
    for headers, room, status in (({}, "canvas", 401), (log, "canvas", 403), (read, "other", 403)):
        with pytest.raises(InvalidStatus) as refused:
            connect(address(server, room), additional_headers=headers, open_timeout=60)
        assert refused.value.response.status_code == status
    with joined(server, headers=read) as listener, joined(server, headers=write) as sender:
        listener.send(("draw", 1), n=1)
        while not listener.errors:
            listener.take()
        assert listener.errors[0]["error"]["status"] == 403
        sender.send(("draw", 2), n=1)
        assert listener.until_heard(1) == [2]


def test_a_revoked_token_ends_its_connections(
    guarded: tuple[Serving, dict[str, str]], tmp_path: Path
) -> None:
    server, texts = guarded
    headers = {"authorization": f"Bearer {texts['room:read:canvas']}"}
    with joined(server, headers=headers) as one:
        with millstream.open(tmp_path / "store.db") as ms:
            Registrar(ms).revoke("room:read:canvas")
        assert one.until_closed() == 1008


def test_a_stopping_server_says_so(tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    with running(place, Settings(port=0)) as server, joined(server, user="ann") as one:
        server.stop()
        assert one.until_closed() == 1001


def test_many_frames_in_one_go_are_stored_in_order_also_with_a_token(
    guarded: tuple[Serving, dict[str, str]],
) -> None:
    server, texts = guarded
    headers = {"authorization": f"Bearer {texts['room:admin:canvas']}"}
    httpx.put(
        f"{server.url}/rooms/canvas/settings",
        json={"messages_per_second": 0},
        headers=headers,
        timeout=60,
    ).raise_for_status()
    with joined(server, headers=headers) as one, joined(server, headers=headers) as other:
        for n in range(5 * STORING_MAX):
            one.send(("draw", n), n=n)
        assert other.until_heard(5 * STORING_MAX) == [*range(5 * STORING_MAX)]
        one.until_sent(5 * STORING_MAX - 1)
        assert [frame["sent"] for frame in one.sent] == [*range(5 * STORING_MAX)]


def test_frames_that_came_before_the_end_of_their_connection_are_stored(server: Serving) -> None:
    specify(server, messages_per_second=0)
    with joined(server) as other:
        with joined(server) as one:
            for n in range(3 * STORING_MAX):
                one.send(("draw", n))
        assert other.until_heard(3 * STORING_MAX) == [*range(3 * STORING_MAX)]


# Profiles, and a server for itself.


def test_a_server_for_itself_pushes_only_what_comes_in_there(tmp_path: Path) -> None:
    place, alone = tmp_path / "store.db", Settings(port=0, rooms_across=False)
    with (
        running(place, alone) as one,
        running(place, alone) as other,
        joined(one, client="a") as a,
        joined(one) as near,
        joined(other) as far,
    ):
        a.send(("draw", 1), n=1)
        assert near.until_heard(1) == [1]
        send(one, {"type": "draw", "data": 2})
        send(other, {"type": "draw", "data": 3})
        assert far.until_heard(1) == [3]
        a.send(("draw", 4), n=2)
        assert near.until_heard(3) == [1, 2, 4]
        far.settle()
        assert far.heard() == [3]


@pytest.mark.parametrize("profile", ["low-latency", "high-throughput"])
def test_in_every_profile_everything_comes_once_and_in_order(tmp_path: Path, profile: Any) -> None:
    place, settings = tmp_path / "store.db", Settings(port=0, rooms_profile=profile)
    with (
        running(place, settings) as one,
        running(place, settings) as other,
        joined(one) as writer,
        joined(one) as near,
        joined(other) as far,
    ):
        for n in range(1, 31):
            writer.send(("draw", n), n=n)
        for client in (near, far):
            assert client.until_heard(30) == [*range(1, 31)]
            client.settle()
            assert len(client.heard()) == 30
