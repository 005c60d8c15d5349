"""On a terminal: questions before something is lost, tables, and no colour where none is wanted."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import millstream


def on_terminal(
    directory: Path, *arguments: str, typed: str = "", **variables: str
) -> tuple[str, int]:
    """Run the program with a terminal as all three streams; what it showed, and its exit code."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "millstream", *arguments],
        cwd=directory,
        env={**os.environ, **variables},
        stdin=its,
        stdout=its,
        stderr=its,
    ) as running:
        os.close(its)
        os.write(ours, typed.encode())
        shown = b""
        while select.select([ours], [], [], 30)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:
                break  # the other side has closed it
        os.close(ours)
    return shown.decode(), running.returncode


@pytest.fixture(autouse=True)
def _numbers(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        ms.log("numbers").append_many([b"%d" % n for n in range(100)])


TRUNCATE = ["log", "truncate", "numbers", "--before", "10"]


@pytest.mark.parametrize(
    ("typed", "extra", "left"), [("n\n", [], 100), ("y\n", [], 90), ("", ["--yes"], 90)]
)
def test_a_truncation_is_confirmed_first(cli: Any, typed: str, extra: list[str], left: int) -> None:
    shown, code = on_terminal(cli.directory, *TRUNCATE, *extra, typed=typed)
    assert ("Delete 10 records, offsets 0 to 9" in shown) == (not extra)
    assert code == (1 if left == 100 else 0)
    assert cli.json("log", "info", "numbers")["records"] == left


def test_a_table_fits_a_narrow_terminal(cli: Any) -> None:
    for columns in ("100", "40"):
        shown, code = on_terminal(cli.directory, "log", "list", COLUMNS=columns)
        assert code == 0
        lines = shown.replace("\r", "").splitlines()
        assert any("numbers" in line for line in lines), shown
        assert all(len(line) <= int(columns) for line in lines if "\x1b" not in line), shown


def test_a_list_of_queues_leaves_out_columns_that_do_not_fit(cli: Any) -> None:
    cli("queue", "create", "a-queue-with-a-name", "--source", "numbers", "--start", "earliest")
    cli("queue", "claim", "a-queue-with-a-name")
    wide, _ = on_terminal(cli.directory, "queue", "list", COLUMNS="130", NO_COLOR="1")
    narrow, _ = on_terminal(cli.directory, "queue", "list", COLUMNS="60", NO_COLOR="1")
    assert "in/s" in wide
    assert "delayed" in wide
    assert "not enough columns" not in wide
    assert "not enough columns for in/s; " in narrow
    assert "available" in narrow
    assert "delayed" not in narrow, "nothing is delayed: that goes first"
    table = [
        line for line in narrow.replace("\r", "").splitlines() if "not enough columns" not in line
    ]
    assert all(len(line) <= 60 for line in table if "\x1b" not in line), narrow


def test_without_colour_there_is_no_colour(cli: Any) -> None:
    coloured, _ = on_terminal(cli.directory, "doctor", TERM="xterm-256color")
    plain, _ = on_terminal(cli.directory, "doctor", TERM="xterm-256color", NO_COLOR="1")
    assert "\x1b[1;32mhealthy" in coloured
    assert "32m" not in plain
    assert "healthy" in plain
