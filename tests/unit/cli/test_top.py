"""`millstream top`: the live view, on a terminal, in a pipe and as JSON."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.cli.screen import Scene, draw, line_of, longest, number, sparkline
from millstream.embedded.status import CommitTimes, Flow, Pulse
from millstream.server.auth.tokens import create_token
from millstream.server.serving import running
from millstream.server.settings import Settings


def pulse(at: int = 0, **changed: Any) -> Pulse:
    facts: dict[str, Any] = {
        "time": at,
        "rates": Flow(),
        "depth": 0,
        "oldest_age_s": 0.0,
        "logs": 1,
        "queues": 1,
        "rooms": 0,
        "health": "healthy",
    }
    return Pulse(**{**facts, **changed})


# What is drawn.


def test_a_sparkline_goes_from_nothing_to_the_most() -> None:
    assert sparkline([0, 1, 4, 8], 4) == "▁▂▅█"
    assert sparkline([], 3) == "   "
    assert sparkline([None, 5.0], 4) == "   █"
    assert sparkline(range(100), 2) == "██"
    assert sparkline([0, 0], 2) == "▁▁"


def test_numbers_are_short() -> None:
    assert [number(one) for one in (None, 0, 3, 2.55, 1234.5, 1e6)] == [
        "-",
        "0",
        "3",
        "2.5",
        "1,234",
        "1,000,000",
    ]


def test_the_longest_queues_come_first(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "store.db", durability="relaxed") as ms:
        for name, count in (("a", 1), ("b", 3), ("c", 2)):
            ms.create_queue(name).put_many([b"x"] * count)
        found = longest(ms.queues(), 2)
    assert [one.name for one in found] == ["b", "c"]


def test_a_line_for_pipes_has_every_figure() -> None:
    found = pulse(
        3_661_000, rates=Flow(1.5, 2.0, 3.0), depth=4, commit_ms=CommitTimes(0.5, None), rooms=2
    )
    assert line_of(found) == ["01:01:01", "1.5", "2", "3", "4", "0", "0.5", "-", "healthy"]


def test_a_screen_shows_names_as_text_and_fits(tmp_path: Path) -> None:
    from rich.console import Console

    with millstream.open(tmp_path / "store.db", durability="relaxed") as ms:
        for n in range(40):
            ms.create_queue(f"[red]queue-{n:02}[/red]\x1b[2J".replace("\x1b", "é"))
            ms.room(f"room-{n:02}").send("chat", n)
        queues, rooms = list(ms.queues()), list(ms.rooms())
    for width, height in ((80, 24), (40, 20)):
        screen = Console(width=width, height=height, record=True, file=StringIO())
        scene = Scene("store.db", [pulse(), pulse(1_000, depth=3)], queues, rooms)
        screen.print(draw(scene, width=width, height=height))
        lines = screen.export_text().splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert any("[red]" in line for line in lines)
        assert any("room-0" in line for line in lines)


# The command.


def test_once_says_how_a_file_stands_and_changes_nothing(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        ms.create_queue("mail").put_many([b"a", b"b"])
        ms.room("hall").send("chat", "hello")
    before = Path("millstream.db").stat().st_mtime_ns
    found = cli.json("top", "--once")
    assert (found["live"]["depth"], found["live"]["queues"]) == (2, 1)
    assert found["queues"][0]["name"] == "mail"
    assert found["rooms"][0]["name"] == "hall"
    titles, line = cli("top", "--once").splitlines()
    assert titles.split("\t")[:2] == ["time", "published"]
    assert len(line.split("\t")) == len(titles.split("\t"))
    assert Path("millstream.db").stat().st_mtime_ns == before


def test_a_store_that_is_not_there_is_one_line_of_error(cli: Any) -> None:
    assert "there is no store" in cli.error("top", "--once", code=2)
    assert not Path("millstream.db").exists()


def test_over_a_server_it_shows_what_the_server_tells(cli: Any) -> None:
    with running("millstream.db", Settings(port=0)) as server:
        assert server.core is not None
        server.core.live.tick_s = 0.05
        with millstream.open(server.url) as ms:
            ms.create_queue("mail").put(b"a")
        found = cli.json("top", "--once", "--store", server.url)
        assert (found["live"]["depth"], found["live"]["queues"]) == (1, 1)
        assert found["live"]["connections"] >= 1


def test_a_token_needs_the_right_to_read_the_store(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        wrong = create_token(ms, "a", ["queue:read:*"])[1]
        right = create_token(ms, "b", ["store:read", "queue:read:*"])[1]
    with running("millstream.db", Settings(port=0, auth="on")) as server:
        assert server.core is not None
        server.core.live.tick_s = 0.05
        at = "--store", server.url, "--token"
        assert "store:read" in cli.error("top", "--once", *at, wrong, code=1)
        assert "live" in cli.json("top", "--once", *at, right)


def test_in_a_pipe_it_writes_lines_until_its_reader_has_gone(
    cli: Any, program: Callable[..., subprocess.Popen[bytes]]
) -> None:
    with millstream.open("millstream.db") as ms:
        ms.log("orders").append(b"x")
    with program("top", "--json") as running_top:
        assert running_top.stdout is not None
        first = json.loads(running_top.stdout.readline())
        second = json.loads(running_top.stdout.readline())
        assert second["live"]["time"] > first["live"]["time"]
        running_top.stdout.close()
        assert running_top.wait(30) == 0


@pytest.mark.parametrize("typed", [b"q", b"\x03"])
def test_on_a_terminal_a_key_ends_it_and_the_terminal_is_as_before(cli: Any, typed: bytes) -> None:
    with millstream.open("millstream.db") as ms:
        ms.create_queue("mail").put(b"x")
    ours, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "millstream", "top"],
        cwd=cli.directory,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "90", "LINES": "24"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as shown_by:
        os.close(its)
        shown = b""
        while b"mail" not in shown and select.select([ours], [], [], 30)[0]:
            shown += os.read(ours, 65_536)
        assert b"published" in shown
        os.write(ours, typed)
        while select.select([ours], [], [], 30)[0]:
            try:
                shown += os.read(ours, 65_536)
            except OSError:
                break
        assert shown_by.wait(30) == 0
    os.close(ours)
    assert b"\x1b[?1049h" in shown  # its own screen,
    assert b"\x1b[?1049l" in shown  # and back
    assert b"Traceback" not in shown


def test_a_terminal_that_goes_ends_it(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        ms.create_queue("mail").put(b"x")
    ours, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "millstream", "top"],
        cwd=cli.directory,
        env={**os.environ, "TERM": "xterm"},
        stdin=its,
        stdout=its,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # and it is not its terminal: no signal tells it
    ) as shown_by:
        os.close(its)
        shown = b""
        while b"mail" not in shown and select.select([ours], [], [], 30)[0]:
            shown += os.read(ours, 65_536)
        os.close(ours)
        shown_by.wait(30)
