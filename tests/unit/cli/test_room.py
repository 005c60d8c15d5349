"""`millstream room`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import millstream
from millstream.format.ticket import PREFIX
from millstream.rooms.commands import TakeInstance


@pytest.fixture
def hall(cli: Any) -> Any:
    cli("room", "settings", "hall", "--retained", "rect", "--ttl", "10m")
    cli("room", "send", "hall", "chat", "hello", "--user", "ada")
    cli("room", "send", "hall", "rect", '{"x": 1}', "--key", "a")
    return cli


def listened(cli: Any, *more: str) -> list[dict[str, Any]]:
    out = cli("room", "listen", "hall", "--timeout", "0s", "--json", *more)
    return [json.loads(line) for line in out.splitlines()]


def test_a_limit_that_is_no_offset_is_refused(hall: Any) -> None:
    hall("room", "listen", "hall", "--timeout", "0s", "--limit", str(10**20), code=2)
    assert "--limit" in hall.stderr


def test_what_is_sent_is_heard(hall: Any) -> None:
    chat, rect = listened(hall, "--from", "earliest")
    assert (chat["from"], chat["type"], chat["data"]) == ("ada", "chat", "hello")
    assert (rect["key"], rect["data"], rect["offset"]) == ("a", {"x": 1}, 1)
    assert [one["type"] for one in listened(hall, "--from", "0", "--type", "rect")] == ["rect"]
    assert listened(hall) == []
    line = hall("room", "listen", "hall", "--from", "-2", "--timeout", "0s", "--limit", "1")
    offset, _, user, kind, key, data = line.rstrip("\n").split("\t")
    assert (offset, user, kind, key, data) == ("0", "ada", "chat", "-", '"hello"')


def test_a_gap_is_told(hall: Any) -> None:
    with millstream.open("millstream.db") as ms:
        ms.room("hall").log.truncate(before=1)
    first, _ = listened(hall, "--from", "0")
    assert first == {"gap": {"from": 0, "to": 1}, "offset": 1}
    told = hall("room", "listen", "hall", "--from", "0", "--timeout", "0s")
    assert "gap\t-\toffset 0" in told


def test_what_is_kept_is_shown_until_it_is_deleted(hall: Any) -> None:
    found = hall.json("room", "retained", "hall")
    assert found["offset"] == 2
    assert [(one["key"], one["data"]) for one in found["values"]] == [("a", {"x": 1})]
    assert "rect\ta\t1" in hall("room", "retained", "hall", "--type", "rect")
    hall("room", "send", "hall", "rect", "--key", "a", "--delete")
    assert hall.json("room", "retained", "hall")["values"] == []
    hall("room", "send", "hall", "rect", "1", "--delete", code=2)
    assert "no DATA" in hall.stderr


def test_settings_are_shown_and_changed(hall: Any) -> None:
    found = hall.json("room", "settings", "hall")["settings"]
    assert (found["ttl"], found["retained"], found["tick"]) == (600, ["rect"], 0.05)
    found = hall.json("room", "settings", "hall", "--retained", "", "--message-max", "1KiB")
    assert (found["settings"]["retained"], found["settings"]["message_bytes_max"]) == ([], 1024)
    assert "time to live\t10m" in hall("room", "settings", "hall")
    assert "not both" in hall.error("room", "settings", "hall", "--retained", "pointer")


def test_rooms_are_listed_and_deleted(hall: Any) -> None:
    (info,) = hall.json("room", "list", "h*")
    assert (info["name"], info["retained"], info["settings"]["ttl"]) == ("hall", 1, 600)
    assert hall("room", "list").splitlines()[1].startswith("hall\t2\t")
    assert hall.json("room", "list", "x*") == []
    assert hall.json("room", "presence", "hall") == []
    assert "--yes" in hall.error("room", "delete", "hall", code=2)
    hall("room", "delete", "hall", "--yes")
    assert "there is no room 'hall'" in hall.error("room", "retained", "hall")


def test_a_ticket_is_printed(hall: Any) -> None:
    assert hall("room", "ticket", "hall", "ada").startswith(PREFIX)
    found = hall.json("room", "ticket", "hall", "ada", "--can", "read", "--expires", "5m")
    assert (found["room"], found["user"], found["can"]) == ("hall", "ada", "read")
    hall("room", "ticket", "hall", "ada", "--can", "all", code=2)
    assert "read or write" in hall.stderr


def test_instances_are_listed_and_one_that_is_gone_is_removed(cli: Any) -> None:
    cli("room", "send", "hall", "chat", "hello")
    assert cli("room", "instances") == ""
    with millstream.open("millstream.db") as ms:
        ms.session.execute(TakeInstance("10.0.0.7:8080", "another machine", 0))
    (found,) = cli.json("room", "instances")
    assert (found["name"], found["state"]) == ("10.0.0.7:8080", "silent")
    assert cli.json("room", "remove-instance", "10.0.0.7:8080")["removed"]
    assert cli.json("room", "instances")[0]["state"] == "stopped"
    assert not cli.json("room", "remove-instance", "10.0.0.7:8080")["removed"]
