"""`millstream log`: list, info, tail, truncate, delete, retention, cursors, metadata."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

import millstream
from millstream import Retention


@pytest.fixture(autouse=True)
def _logs(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        ms.log("numbers").append_many([b"%d" % n for n in range(100)])
        ms.log("orders").append("one")


def test_a_list_shows_every_log_or_those_of_a_pattern(cli: Any) -> None:
    lines = [line.split("\t") for line in cli("log", "list").splitlines()]
    assert lines[0][:4] == ["log", "start", "end", "records"]
    assert [line[:4] for line in lines[1:]] == [
        ["numbers", "0", "100", "100"],
        ["orders", "0", "1", "1"],
    ]
    assert [info["name"] for info in cli.json("log", "list", "ord*")] == ["orders"]
    assert cli.json("log", "list", "nothing*") == []


def test_info_shows_cursors_and_metadata(cli: Any) -> None:
    cli("read", "numbers", "--cursor", "c", "--ack", "--limit", "3")
    cli("log", "metadata", "numbers", "owner", "me")
    found = cli.json("log", "info", "numbers")
    assert (found["records"], found["end_offset"]) == (100, 100)
    assert found["metadata"] == {"owner": "me"}
    assert [(c["name"], c["floor"], c["lag"]) for c in found["cursors"]] == [("c", 3, 97)]
    assert "floor 3, 97 behind" in cli("log", "info", "numbers")


def test_truncate_says_how_many_went(cli: Any) -> None:
    assert "10 records" in cli("log", "truncate", "numbers", "--before", "10", "-y")
    found = cli.json("log", "truncate", "numbers", "--before", "30", "-y")
    assert found == {"log": "numbers", "truncated": 20, "start_offset": 30}
    assert cli.json("log", "truncate", "numbers", "--before", "5")["truncated"] == 0


def test_truncate_past_the_end_has_to_be_said(cli: Any) -> None:
    for before in ("101", str(2**63 - 1)):
        cli("log", "truncate", "numbers", "--before", before, "--yes", code=1)
        assert f"log 'numbers' ends at 100, and {before} lies past that" in cli.stderr
        assert cli.json("log", "info", "numbers")["records"] == 100
    cli("log", "truncate", "numbers", "--before", "150", "--past-end", "-y")
    assert cli.json("log", "info", "numbers")["start_offset"] == 150


def test_delete_takes_the_log(cli: Any) -> None:
    assert cli.json("log", "delete", "orders", "-y") == {
        "log": "orders",
        "deleted": True,
        "records": 1,
    }
    assert [info["name"] for info in cli.json("log", "list")] == ["numbers"]
    cli.error("log", "delete", "orders", "-y")


def test_rules_of_retention_replace_all_rules_as_in_python(cli: Any) -> None:
    def retention(*flags: str) -> Any:
        return cli.json("log", "retention", "numbers", *flags, "-y")["retention"]

    assert retention() == {}
    assert retention("--age", "7d", "--bytes", "1GiB") == {"age_ms": 604_800_000, "bytes": 1 << 30}
    assert retention() == {"age_ms": 604_800_000, "bytes": 1 << 30}
    assert retention("--bytes", "2kB") == {"bytes": 2_000}
    assert retention("--age", "604800001ms", "--consumed") == {
        "age_ms": 604_800_001,
        "consumed": True,
    }
    with millstream.open("millstream.db") as ms:
        log = ms.log("numbers")
        assert log.retention() == Retention(age_ms=604_800_001, consumed=True)
        log.retain(count=5)
        assert log.retention() == Retention(count=5)
    assert retention("--keep-all") == {}
    assert retention("--consumed") == {"consumed": True}
    assert retention("--no-consumed") == {}


def test_enforcing_retention_forgets_at_once(cli: Any) -> None:
    cli("log", "retention", "numbers", "--count", "40", "--enforce", "-y")
    found = cli.json("log", "info", "numbers")
    assert (found["start_offset"], found["end_offset"]) == (60, 100)


def test_a_cursor_is_moved_and_deleted(cli: Any) -> None:
    cli("read", "numbers", "--cursor", "c", "--ack", "--limit", "3")
    assert [
        c["floor"] for c in cli.json("log", "cursors", "numbers", "c", "--seek", "50", "-y")
    ] == [50]
    assert [
        c["floor"] for c in cli.json("log", "cursors", "numbers", "c", "--seek", "-1", "-y")
    ] == [99]
    cli.error("log", "cursors", "numbers", "c", "--seek", "500", "-y")
    assert cli.json("log", "cursors", "numbers", "c", "--delete", "-y") == []
    cli.error("log", "cursors", "numbers", "c")


def test_what_is_acknowledged_above_the_floor_is_listed(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        ms.log("numbers").cursor("c").ack([0, 5, 6, 9])
    assert "c\t1\t96\t5-6, 9\t0\tyes" in cli("log", "cursors", "numbers")


def test_metadata_is_set_compared_shown_and_deleted(cli: Any) -> None:
    cli("log", "metadata", "numbers", "limit", "5")
    cli("log", "metadata", "numbers", "team", "blue")
    assert cli.json("log", "metadata", "numbers") == {"limit": 5, "team": "blue"}
    assert cli("log", "metadata", "numbers", "team") == "blue\n"
    cli("log", "metadata", "numbers", "limit", "6", "--expect", "5")
    assert "not 5" in cli.error("log", "metadata", "numbers", "limit", "7", "--expect", "5")
    cli("log", "metadata", "numbers", "team", "--delete")
    assert cli.json("log", "metadata", "numbers") == {"limit": 6}
    cli.error("log", "metadata", "numbers", "team")
    cli.error("log", "metadata", "numbers", "team", "--delete")


def test_a_tail_shows_the_last_and_ends_when_nothing_comes(cli: Any) -> None:
    flags = ["--values", "--timeout", "10ms"]
    assert cli("log", "tail", "numbers", "--from", "-2", *flags) == "98\n99\n"
    assert cli("log", "tail", "numbers", *flags) == ""
    assert cli("log", "tail", "numbers", "--from", "0", "--limit", "1", *flags) == "0\n"
    assert cli("log", "tail", "numbers", "--from", "0", "--limit", "0", *flags) == ""


def test_a_tail_follows_another_process_and_ends_quietly_by_control_c(
    cli: Any, program: Callable[..., subprocess.Popen[bytes]]
) -> None:
    with program("log", "tail", "numbers", "--values", "--from", "-1") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"99\n"
        cli("append", "numbers", "fresh")
        assert running.stdout.readline() == b"fresh\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
        assert running.stderr.read() == b""


def test_a_tail_passes_over_what_was_truncated(cli: Any) -> None:
    cli("log", "truncate", "numbers", "--before", "98", "--yes")
    shown = cli("log", "tail", "numbers", "--from", "5", "--values", "--timeout", "10ms")
    assert shown == "98\n99\n"
    assert "offsets 5 to 97 were truncated" in cli.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["truncate", "numbers"],
        ["truncate", "numbers", "--before", "x"],
        ["retention", "numbers", "--age", "soon"],
        ["retention", "numbers", "--bytes", "much"],
        ["cursors", "numbers", "--delete"],
        ["cursors", "numbers", "c", "--delete", "--seek", "1"],
        ["metadata", "numbers", "--delete"],
        ["metadata", "numbers", "k", "v", "--delete"],
    ],
)
def test_a_wrong_command_line_ends_with_2_and_changes_nothing(
    cli: Any, arguments: list[str]
) -> None:
    before = cli.json("log", "info", "numbers")
    cli("log", *arguments, code=2)
    assert cli.json("log", "info", "numbers") == before
