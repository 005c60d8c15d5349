"""`millstream read`."""

from __future__ import annotations

import subprocess
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import millstream


@pytest.fixture(autouse=True)
def _numbers(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        ms.log("numbers").append_many([b"%d" % n for n in range(100)])


def test_a_line_shows_offset_time_key_and_value(cli: Any) -> None:
    cli("append", "a", "hello", "-k", "k", "--timestamp", "1000")
    assert cli("read", "a") == "0\t1970-01-01 00:00:01.000Z\tk\thello\n"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--from", "97"], [97, 98, 99]),
        (["--from", "-2"], [98, 99]),
        (["--from", "earliest", "--to", "3"], [0, 1, 2]),
        (["--from", "latest"], []),
        (["--limit", "2"], [0, 1]),
        (["--limit", "0"], []),
        (["--from", "500"], []),
    ],
)
def test_a_range_is_chosen_by_offsets(cli: Any, flags: list[str], expected: list[int]) -> None:
    assert [int(v) for v in cli("read", "numbers", "--values", *flags).split()] == expected


def test_control_characters_never_reach_the_terminal(cli: Any) -> None:
    cli("append", "a", "--raw", input=b"\x1b[31m\xff\nred")
    shown = cli("read", "a")
    assert "\\x1b[31m\\xff\\nred" in shown
    assert "\x1b" not in shown


def test_json_says_how_the_value_is_encoded(cli: Any) -> None:
    cli("append", "a", '{"n": 1}', "--json-lines")
    cli("append", "a", "text")
    cli("append", "a", "--raw", input=b"\xff\xfe")
    found = [msgspec.json.decode(line) for line in cli("read", "a", "--json").splitlines()]
    assert [r["value_encoding"] for r in found] == ["json", "text", "base64"]
    assert found[0]["value"] == {"n": 1}
    assert found[1]["value"] == "text"
    assert b64decode(found[2]["value"]) == b"\xff\xfe"
    assert [r["offset"] for r in found] == [0, 1, 2]


def test_a_value_that_only_claims_to_be_json_is_shown_as_text(cli: Any) -> None:
    cli("append", "a", "oops", "-H", "content-type=application/json")
    (line,) = cli("read", "a", "--json").splitlines()
    assert msgspec.json.decode(line)["value"] == "oops"


def test_a_cursor_goes_on_where_it_acknowledged(cli: Any) -> None:
    flags = ["--values", "--cursor", "c", "--limit", "2"]
    assert cli("read", "numbers", *flags, "--ack") == "0\n1\n"
    assert cli("read", "numbers", *flags) == "2\n3\n"
    assert cli("read", "numbers", *flags, "--ack") == "2\n3\n"
    assert cli("read", "numbers", "--values", "--cursor", "c", "--ack").split()[0] == "4"
    assert cli("read", "numbers", *flags) == ""


def test_a_new_cursor_starts_where_it_is_told(cli: Any) -> None:
    flags = ["--values", "--cursor", "late", "--ack"]
    assert cli("read", "numbers", *flags, "--from", "-1") == "99\n"
    cli("read", "numbers", *flags, "--from", "0", code=2)


def test_a_missing_cursor_is_not_made_by_looking(cli: Any) -> None:
    assert "--ack creates one" in cli.error("read", "numbers", "--cursor", "nobody")
    assert cli.json("log", "cursors", "numbers") == []


def test_a_missing_log_and_a_missing_store_are_told_apart(cli: Any) -> None:
    assert "log list" in cli.error("read", "nothing")
    assert "no store at" in cli.error("read", "numbers", "-s", "none.db", code=2)
    assert not (cli.directory / "none.db").exists()


def test_a_truncated_offset_says_where_the_log_begins(cli: Any) -> None:
    cli("log", "truncate", "numbers", "--before", "10", "--yes")
    assert "start at 10" in cli.error("read", "numbers", "--from", "3")


@pytest.mark.parametrize(
    "flags", [["--json", "--values"], ["--ack"], ["--from", "x"], ["--cursor", "c", "--to", "3"]]
)
def test_a_wrong_command_line_ends_with_2(cli: Any, flags: list[str]) -> None:
    cli("read", "numbers", *flags, code=2)


def test_a_reader_that_has_seen_enough_is_no_error(
    cli: Any, program: Callable[..., subprocess.Popen[bytes]]
) -> None:
    cli("append", "many", input=b"some words to fill the pipe\n" * 100_000)
    with program("read", "many") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline().endswith(b"fill the pipe\n")
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(60) == 0


def test_a_limit_that_is_no_offset_is_refused(cli: Any) -> None:
    cli("read", "numbers", "--limit", str(10**20), code=2)
    assert "--limit" in cli.stderr


def test_a_cursor_that_retention_overtook_says_so(cli: Any) -> None:
    cli("read", "numbers", "--values", "--cursor", "c", "--ack", "--limit", "2")
    cli("log", "truncate", "numbers", "--before", "5", "--yes")
    assert cli.json("log", "cursors", "numbers")[0]["lost_ranges"] == [[2, 5]]
    out = cli("read", "numbers", "--values", "--cursor", "c", "--ack", "--limit", "1")
    assert len(out.split()) == 1
    assert "had deleted offsets 2 to 4 before cursor c" in cli.stderr
    assert cli.json("log", "cursors", "numbers")[0]["lost_ranges"] == []
    assert cli.json("log", "cursors", "numbers")[0]["lost"] == 3
    assert "3 records lost to retention" in cli("log", "info", "numbers")


def test_the_last_records_are_read(cli: Any) -> None:
    assert cli("read", "numbers", "--values", "--last", "3").split() == ["97", "98", "99"]
    assert cli("read", "numbers", "--last", "0") == ""
    assert len(cli("read", "numbers", "--last", "1000", "--values").split()) == 100
    cli("read", "numbers", "--last", "3", "--from", "5", code=2)
    assert "only one of them" in cli.stderr
