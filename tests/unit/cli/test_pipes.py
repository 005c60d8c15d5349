"""Readers of the output that go away, and input without a terminal: what is done all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream

Program = Callable[..., subprocess.Popen[bytes]]
LINES = b"".join(b"%d\n" % n for n in range(20_000))


def after_one_line(running: subprocess.Popen[bytes], given: bytes = b"") -> tuple[int, bytes]:
    """Let a reader go away after one line, as `head -1` does; the exit code, and what was told."""
    assert running.stdin is not None
    assert running.stdout is not None
    assert running.stderr is not None
    first, rest = given[:2_000], given[2_000:]
    running.stdin.write(first)
    running.stdin.flush()
    assert running.stdout.readline()
    running.stdout.close()
    running.stdin.write(rest)
    running.stdin.close()
    return running.wait(60), running.stderr.read()


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_all_is_appended_though_nobody_reads_the_offsets(
    cli: Any, program: Program, flags: list[str]
) -> None:
    if flags:  # JSON comes at the end: its reader is gone before
        with program("append", "numbers", *flags) as running:
            assert running.stdout is not None
            running.stdout.close()
            running.stdout = None
            _, told = running.communicate(LINES, timeout=60)
        code = running.returncode
    else:
        with program("append", "numbers", "--batch", "50") as running:
            code, told = after_one_line(running, LINES)
    assert (code, told) == (0, b"")
    with millstream.open("millstream.db") as ms:
        assert [record.value for record in ms.log("numbers").read()] == LINES.split()


def test_all_is_put_though_nobody_reads_how_many(cli: Any, program: Program) -> None:
    cli("queue", "create", "jobs")
    with program("put", "jobs") as running:
        assert running.stdout is not None
        running.stdout.close()
        running.stdout = None
        _, told = running.communicate(LINES, timeout=60)
    assert (running.returncode, told) == (0, b"")
    assert cli.json("queue", "info", "jobs")["available"] == 20_000


def test_an_append_that_fails_after_its_reader_went_is_an_error(cli: Any, program: Program) -> None:
    with program("append", "numbers", "--batch", "50", "--json-lines") as running:
        code, told = after_one_line(running, LINES + b"not json\n")
    assert code == 1
    assert b"record 20001 is not JSON" in told


def test_output_that_cannot_be_written_is_an_error(cli: Any, tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "millstream", "append", "a", "x"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: ")


@pytest.mark.parametrize(
    ("command", "told"),
    [("claim", b"until their leases end"), ("pop", b"will not be delivered again")],
)
def test_messages_that_no_reader_gets_are_an_error(
    cli: Any, program: Program, command: str, told: bytes
) -> None:
    cli("queue", "create", "jobs")
    cli("put", "jobs", input=LINES)
    with program("queue", command, "jobs", "-n", "9000") as running:
        code, errors = after_one_line(running)
    assert code == 1
    assert b"could be printed; they " in errors
    assert told in errors


def test_a_cursor_acknowledges_only_what_was_printed(cli: Any, program: Program) -> None:
    cli("append", "numbers", input=LINES)
    with program("read", "numbers", "--cursor", "c", "--ack") as running:
        code, told = after_one_line(running)
    assert (code, told) == (0, b"")
    (cursor,) = cli.json("log", "cursors", "numbers")
    assert cursor["floor"] < 20_000
    assert cursor["floor"] % 500 == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["log", "truncate", "a", "--before", "1"],
        ["log", "delete", "a"],
        ["log", "retention", "a", "--count", "0"],
        ["log", "cursors", "a", "c", "--seek", "0"],
        ["log", "cursors", "a", "c", "--delete"],
        ["log", "owner", "a", "--hand-over", "0123"],
        ["log", "merge", "fork", "--on-fork", "longest"],
        ["queue", "purge", "jobs"],
        ["queue", "delete", "jobs"],
        ["token", "revoke", "ci"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_what_deletes_needs_yes_without_a_terminal(cli: Any, arguments: list[str]) -> None:
    with millstream.open("millstream.db") as ms:
        ms.log("a").append_many(["x", "y"])
        ms.log("a").cursor("c").ack([0])
        ms.log("a").fork("fork").append("z")
        ms.create_queue("jobs").put("work")
    cli("token", "create", "ci", "--allow", "log:read")
    told = cli.error(*arguments, code=2)
    assert told.endswith("Use --yes")
    assert "there is no terminal to ask on" in told
    assert cli.json("log", "info", "a")["records"] == 2
    assert cli.json("queue", "info", "jobs")["available"] == 1
    cli(*arguments, "--yes")
