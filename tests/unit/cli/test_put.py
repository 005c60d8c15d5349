"""`millstream put`: where messages go, and when they are due."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
import pytest

import millstream

FAR = "2999-01-01T00:00:00+00:00"


@pytest.fixture
def jobs(cli: Any) -> Any:
    cli("queue", "create", "plain")
    cli(
        *("queue", "create", "jobs", "--priority-by", "prio"),
        *("--group-by", "_key", "--dedup-by", "id"),
    )
    return cli


def claimed(cli: Any, queue: str, count: int = 10) -> list[dict[str, Any]]:
    out = cli("queue", "claim", queue, "-n", str(count), "--json")
    return [msgspec.json.decode(line) for line in out.splitlines()]


def counts(cli: Any, queue: str) -> tuple[int, int]:
    found = cli.json("queue", "info", queue)
    return found["available"] + found["unrouted"], found["delayed"]


def test_a_priority_lets_a_message_overtake(jobs: Any) -> None:
    jobs("put", "jobs", "soon")
    jobs("put", "jobs", "sooner", "--priority", "1")
    jobs("put", "jobs", "soonest", "--priority", "9")
    found = claimed(jobs, "jobs")
    assert [m["value"] for m in found] == ["soonest", "sooner", "soon"]
    assert found[0]["headers"]["prio"] == 9


def test_a_group_is_the_key_where_the_queue_says_so(jobs: Any) -> None:
    assert jobs("put", "jobs", "a", "b", "--group", "ada") == "2 messages put\n"
    jobs("put", "jobs", "c", "--group", "bob", "--key", "bob")
    assert [(m["value"], m["key"]) for m in claimed(jobs, "jobs")] == [("a", "ada"), ("c", "bob")]


def test_a_repeat_is_dropped_and_counted(jobs: Any) -> None:
    for value in ("first", "second"):
        jobs("put", "jobs", value, "--dedup", "order-1")
    assert [m["value"] for m in claimed(jobs, "jobs")] == ["first"]
    assert jobs.json("queue", "info", "jobs")["duplicates"] == 1
    assert "duplicates\t1 dropped\n" in jobs("queue", "info", "jobs")


def test_an_id_is_for_one_message_only(jobs: Any) -> None:
    assert "single message" in jobs.error("put", "jobs", "a", "b", "--dedup", "x")
    assert "single message" in jobs.error("put", "jobs", "--dedup", "x", input=b"a\nb\n")
    assert counts(jobs, "jobs") == (0, 0)
    assert jobs("put", "jobs", "--dedup", "x", input=b"a\n") == "1 message put\n"


def test_lines_with_a_priority_are_still_one_commit_per_batch(jobs: Any) -> None:
    jobs("fold")
    lines = b"".join(b"%d\n" % n for n in range(25))
    options = ("--priority", "3", "--group", "g", "--batch", "10")
    for extra in (["--delay", "1h"], []):
        assert jobs("put", "jobs", *options, *extra, input=lines) == "25 messages put\n"
        # Three batches; closing may place the messages in one commit more.
        assert jobs.json("fold")["folded"] in (3, 4)
    with millstream.open("millstream.db") as ms:
        records = list(ms.log("queue:jobs").read())
    assert {(r.key, r.headers["prio"]) for r in records} == {(b"g", 3)}
    assert [r.value for r in records] == lines.split()


def test_a_delay_holds_messages_back(jobs: Any) -> None:
    jobs("put", "plain", "a", "b", "--delay", "1h")
    assert counts(jobs, "plain") == (0, 2)
    jobs("put", "plain", "c", "--delay", "0s")
    assert [m["value"] for m in claimed(jobs, "plain")] == ["c"]


def test_a_time_holds_messages_back_until_then(jobs: Any) -> None:
    assert jobs("put", "plain", "a", "--at", FAR).startswith("1 message put for 2")
    assert jobs("put", "plain", "b", "--at", "2001-01-01")
    assert counts(jobs, "plain") == (1, 1)
    assert [m["value"] for m in claimed(jobs, "plain")] == ["b"]
    due_ms = round(datetime.fromisoformat(FAR).timestamp() * 1000)
    told = jobs.json("put", "plain", "c", "--at", FAR)
    assert (told["queue"], told["count"], told["due_ms"]) == ("plain", 1, due_ms)


def test_a_time_without_a_zone_is_local(
    jobs: Any, program: Callable[..., subprocess.Popen[bytes]]
) -> None:
    arguments = ("put", "plain", "a", "--at", "2999-01-01T02:00", "--json")
    out, _ = program(*arguments, env={**os.environ, "TZ": "EAST-2"}).communicate(timeout=30)
    due_ms = round(datetime.fromisoformat(FAR).timestamp() * 1000)
    assert msgspec.json.decode(out)["due_ms"] == due_ms


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--delay", "1h", "--at", FAR], "not both"),
        (["--delay", "soon"], "a duration must look like"),
        (["--delay", "9" * 400], "a duration must look like"),
        (["--at", "noon"], "a time must look like"),
        (["--at", "18:30"], "a time must look like"),
        (["--at", "0001-01-01"], "a time must look like"),
        (["--at", "1700000000000"], "a time must look like"),
        (["--priority", "10"], "range"),
        (["--priority", "-1"], "range"),
        (["--priority", "high"], "--priority"),
        (["--raw"], "--raw reads its message from stdin"),
    ],
)
def test_a_wrong_command_line_ends_with_2(jobs: Any, arguments: list[str], told: str) -> None:
    jobs("put", "jobs", "x", *arguments, code=2)
    assert told in " ".join(jobs.stderr.split())
    assert counts(jobs, "jobs") == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plain", "--priority", "1"], "alter plain --priority-by HEADER"),
        (["plain", "--group", "g"], "alter plain --group-by HEADER"),
        (["plain", "--dedup", "d"], "alter plain --dedup-by HEADER"),
        (["jobs", "--group", "g", "--key", "k"], "the key of the message"),
        (["jobs", "--priority", "1", "-H", "prio=2"], "the header 'prio'"),
        (["jobs", "--delay", "10000w"], "from 0 to 316,224,000 seconds"),
        (["jobs", "--at", "1960-01-01"], "milliseconds since the epoch"),
    ],
)
def test_what_the_queue_cannot_do_is_one_clear_line(
    jobs: Any, arguments: list[str], told: str
) -> None:
    assert told in jobs.error("put", *arguments, "x")
    assert counts(jobs, arguments[0]) == (0, 0)
