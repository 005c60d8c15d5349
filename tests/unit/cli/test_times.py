"""Reading and routing from a time on, and leases by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import millstream
from millstream.record import moment
from millstream.testing import SimulatedClock


@pytest.fixture
def hours(cli: Any) -> list[datetime]:
    """A log with ten records for each of five hours; when each hour began."""
    clock = SimulatedClock()
    began = []
    with millstream.open("millstream.db", clock=clock) as ms:
        for hour in range(5):
            began.append(moment(clock.wall_ms()))
            ms.log("numbers").append_many([b"%d" % (10 * hour + n) for n in range(10)])
            clock.advance(3600)
    return began


@pytest.mark.parametrize("command", [["read"], ["log", "tail", "--timeout", "10ms"]])
def test_reading_begins_at_a_time(cli: Any, hours: list[datetime], command: list[str]) -> None:
    def first(since: str) -> str:
        return str(cli(*command, "numbers", "--values", "--since", since)).partition("\n")[0]

    for hour, began in enumerate(hours):
        assert first(began.isoformat()) == str(10 * hour)
        later = (began + timedelta(milliseconds=1)).isoformat()
        assert first(later) == ("" if hour == 4 else str(10 * hour + 10))
    assert first("1990-01-01") == "0"
    assert first("2999-01-01") == ""
    ago = datetime.now(UTC) - hours[2] + timedelta(minutes=30)
    assert first(f"{ago.total_seconds():.0f}s") == "20"


def test_a_cursor_begins_at_a_time(cli: Any, hours: list[datetime]) -> None:
    flags = ["--cursor", "c", "--ack", "--values", "--since", hours[4].isoformat()]
    assert cli("read", "numbers", *flags).split()[0] == "40"
    cli("read", "numbers", *flags, code=2)


def test_a_cursor_is_moved_to_a_time(cli: Any, hours: list[datetime]) -> None:
    cli("read", "numbers", "--cursor", "c", "--ack")
    move = ("log", "cursors", "numbers", "c", "--since", hours[2].isoformat())
    assert cli.json(*move, "--yes")[0]["floor"] == 20
    cli(*move, "--seek", "3", "--yes", code=2)
    cli("log", "cursors", "numbers", "--since", "1h", code=2)


def test_reading_begins_at_a_time_behind_what_was_truncated(
    cli: Any, hours: list[datetime]
) -> None:
    cli("log", "truncate", "numbers", "--before", "25", "--yes")
    assert cli("read", "numbers", "--values", "--since", "1990-01-01").split()[0] == "25"


@pytest.mark.parametrize("flags", [["--since", "noon"], ["--since", "1h", "--from", "3"]])
def test_a_wrong_time_is_refused(cli: Any, hours: list[datetime], flags: list[str]) -> None:
    cli("read", "numbers", *flags, code=2)


def test_a_queue_begins_at_a_time(cli: Any, hours: list[datetime]) -> None:
    create = ("queue", "create", "jobs", "--source", "numbers", "--start")
    cli(*create, hours[3].isoformat())
    assert cli("queue", "pop", "jobs", "--values") == "30\n"
    cli(*create, "noon", code=2)
    assert "latest, earliest, an offset, or a time" in " ".join(cli.stderr.split())


def test_leases_are_renewed_up_to_the_maximum(cli: Any) -> None:
    cli("queue", "create", "jobs", "--lease", "1m", "--lease-max", "10m")
    cli("put", "jobs", "a", "b")
    (claim,) = (line.split("\t")[0] for line in cli("queue", "claim", "jobs").splitlines())

    def minutes(*flags: str) -> int:
        until = cli.json("queue", "renew", "jobs", claim, *flags)["until"]
        return round((datetime.fromisoformat(until) - datetime.now(UTC)).total_seconds() / 60)

    assert minutes() == 1
    assert minutes("--lease", "5m") == 5
    assert minutes("--lease", "5h") == 10
    assert "1 message renewed, until 2" in cli("queue", "renew", "jobs", claim)
    assert "lease\t1m, up to 10m\n" in cli("queue", "info", "jobs")
    assert "lease is from" in cli.error(
        "queue", "alter", "jobs", "--lease", "1h", "--lease-max", "5m"
    )
    found = cli.json("queue", "alter", "jobs", "--lease", "1h")["spec"]
    assert (found["lease"], found["lease_max"]) == (3_600, 3_600)
    cli("queue", "ack", "jobs", claim)
    assert "does not hold" in cli.error("queue", "renew", "jobs", claim)


def test_messages_are_popped_once(cli: Any) -> None:
    cli("queue", "create", "jobs")
    cli("put", "jobs", "a", "b", "c")
    assert cli("queue", "pop", "jobs", "--values", "-n", "2") == "a\nb\n"
    found = msgspec.json.decode(cli("queue", "pop", "jobs", "--json", "--wait", "1s"))
    assert (found["value"], found["attempt"]) == ("c", 1)
    assert cli("queue", "pop", "jobs") == ""
    assert cli.json("queue", "info", "jobs")["done"] == 3
