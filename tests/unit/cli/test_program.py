"""The program as a whole: settings, errors, start-up, the demonstration."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import millstream
from millstream import errors
from millstream.cli import app
from millstream.cli.advice import exit_code, explain
from millstream.server.settings import Settings


def names(cli: Any, *arguments: str) -> list[str]:
    return [info["name"] for info in cli.json(*arguments)]


@pytest.fixture
def _three_stores(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One store for each place that a setting may come from."""
    for name in ("flag", "variable", "file"):
        cli("append", name, "x", "-s", f"{name}.db")
    Path("millstream.toml").write_text('store = "file.db"\n', encoding="utf-8")
    monkeypatch.setenv("MILLSTREAM_STORE", "variable.db")


@pytest.mark.usefixtures("_three_stores")
def test_flags_beat_variables_and_variables_beat_the_file(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(cli, "log", "list", "--store", "flag.db") == ["flag"]
    assert names(cli, "--store", "flag.db", "log", "list") == ["flag"]
    assert names(cli, "--store", "file.db", "log", "list", "-s", "flag.db") == ["flag"]
    assert names(cli, "log", "list") == ["variable"]
    monkeypatch.delenv("MILLSTREAM_STORE")
    assert names(cli, "log", "list") == ["file"]
    Path("millstream.toml").unlink()
    cli.error("log", "list", code=2)


def test_a_section_of_the_file_sets_the_options_of_a_command(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("millstream.toml").write_text("[append]\nbatch = 2\n", encoding="utf-8")
    assert cli("append", "a", input=b"1\n2\n3\n") == "0-1\n2\n"
    monkeypatch.setenv("MILLSTREAM_APPEND_BATCH", "3")
    assert cli("append", "a", input=b"1\n2\n3\n") == "3-5\n"
    assert cli("append", "a", "--batch", "1", input=b"1\n2\n") == "6\n7\n"


def test_the_section_of_rooms_sets_what_a_server_does_about_them(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Settings] = []

    class Refused(Exception):
        pass

    def refuse(_: Any, settings: Settings, **__: Any) -> None:
        asked.append(settings)
        raise Refused

    monkeypatch.setattr("millstream.server.serving.Serving", refuse)
    text = '[rooms]\nsweep = "10s"\nbatch = 7\nacross = false\n[serve]\nrooms-batch = 8\n'
    Path("millstream.toml").write_text(text, encoding="utf-8")
    for more in ([], ["--rooms-sweep", "2s", "--rooms-poll", "50ms", "--rooms-across"]):
        CliRunner().invoke(app, ["serve", *more])
    found = [(s.rooms_sweep_s, s.rooms_poll_s, s.rooms_batch, s.rooms_across) for s in asked]
    assert found == [(10.0, 0.0, 8, False), (2.0, 0.05, 8, True)]


def test_the_store_of_a_named_file_lies_beside_it(cli: Any) -> None:
    Path("sub").mkdir()
    Path("sub/my.toml").write_text('store = "x.db"\n', encoding="utf-8")
    cli("--config", "sub/my.toml", "append", "a", "x")
    assert Path("sub/x.db").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('sotre = "x"', "sotre"),
        ("[append]\nbacth = 1", "bacth"),
        ("[log.nothing]\nx = 1", "log.nothing"),
        ("store = 1", "store must be text"),
        ("store = ", "millstream.toml"),
        ("rooms = 1", "rooms must be a section"),
        ("[rooms]\nsweeep = 1", "[rooms] has no option 'sweeep'"),
    ],
)
def test_a_mistake_in_the_file_is_named(cli: Any, text: str, told: str) -> None:
    Path("millstream.toml").write_text(text, encoding="utf-8")
    cli("stats", code=2)
    assert told in cli.stderr


def test_a_file_that_is_not_a_store_is_refused_and_left_alone(cli: Any) -> None:
    other = cli.directory / "notes.txt"
    other.write_text("something else\n" * 20, encoding="utf-8")
    for command in (["log", "list"], ["append", "a", "x"], ["doctor"]):
        told = cli.error(*command, "-s", "notes.txt", code=2)
        assert "not a Millstream store" in told
    assert other.read_text(encoding="utf-8") == "something else\n" * 20


def test_debug_shows_where_an_error_comes_from(
    program: Callable[..., subprocess.Popen[bytes]],
) -> None:
    for flags, shown in ([], False), (["--debug"], True):
        _, told = program(*flags, "log", "list", "-s", "none.db").communicate(timeout=60)
        assert (b"Traceback" in told) == shown
        assert told.splitlines()[-1].startswith(b"error: there is no store at none.db")


def test_every_error_is_explained_in_one_line() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.MillstreamError):
            line = explain(kind("it\nfailed", end=5, expected=6, epoch=7, start=8))
            assert line.startswith("it failed")
            assert "\n" not in line
            assert "{" not in line
    assert explain(errors.EndMoved("moved", end=5)).endswith("--expect-end 5")
    assert explain(errors.NotFound("gone; look there")) == "gone; look there"
    assert exit_code(errors.CannotOpen("no")) == 2
    assert exit_code(errors.Locked("no")) == 1


def test_an_error_names_options_as_they_are_typed(cli: Any) -> None:
    cli("append", "past_end", "x")
    told = cli.error("log", "truncate", "past_end", "--before", "99", "--yes")
    assert "log 'past_end' ends at 1" in told
    assert "say --past-end to have it go on" in told
    told = cli.error("queue", "create", "mail", "--max-attempts", "0")
    assert told == "error: --max-attempts is from 1 to 65,535, not 0"
    told = cli.error("room", "settings", "hall", "--message-max", "1TiB")
    assert told.startswith("error: --message-max is from 1 to ")
    cli("log", "create", "parts", "--partitions", "4")
    told = cli.error("log", "create", "parts", "--partitions", "5")
    assert "say --partitions 4." in told
    assert "--grow" in told


def test_words_of_a_filter_and_of_an_address_are_no_options() -> None:
    flags = {"past_end": "--past-end", "token": "--token"}
    filter = errors.InvalidFilter("found past_end", line=1, column=1, expected="and")
    assert explain(filter, flags) == "found past_end"
    told = "no store at /a/past_end/b, nor at http://h/?token=x, nor at past_end.db"
    assert explain(errors.CannotOpen(told), flags) == told


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("pass token=, or set it", "pass --token, or set it"),
        ("name its authority by ca=", "name its authority by --ca"),
        ("ca= is for https", "--ca is for https"),
        ("open it with accept_loss=True; or not", "open it with --accept-loss; or not"),
        ("say partitions=4.", "say --partitions 4."),
        ("mode='r' only reads", "mode='r' only reads"),
        ("other=5 stays", "other=5 stays"),
    ],
)
def test_arguments_of_the_library_are_shown_as_options(told: str, shown: str) -> None:
    names = ("token", "ca", "accept_loss", "partitions", "mode")
    flags = {name: f"--{name.replace('_', '-')}" for name in names}
    assert explain(errors.InvalidInput(told), flags) == shown


def test_stats_count_logs_and_records(cli: Any) -> None:
    cli("append", "a", "x", "y")
    found = cli.json("stats")
    assert (found["logs"], found["records"], found["engine"]) == (1, 2, "sqlite")
    assert "records\t2" in cli("stats")


def test_fold_says_how_many_commits_it_moved(cli: Any) -> None:
    for _ in range(3):
        cli("append", "a", "x")
    assert cli.json("fold")["folded"] == 3
    assert cli("fold") == "0 commits folded\n"


@pytest.mark.parametrize("part", ["millstream", "millstream.cli.exec"])
def test_an_interrupt_while_the_program_is_imported_is_quiet(part: str) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    module, _, function = project["project"]["scripts"]["millstream"].partition(":")
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {part!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        f"from {module} import {function}\n"
        f"sys.argv = ['millstream', '--version']; {function}()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_before_the_command_runs_is_quiet() -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import typer.main\n"
        "typer.main.get_command = lambda app: os.kill(os.getpid(), signal.SIGINT)\n"
        "from millstream_command import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_version_is_the_package_s(cli: Any) -> None:
    assert cli("--version") == f"millstream {millstream.__version__}\n"


def test_help_loads_neither_the_database_nor_tables() -> None:
    code = (
        "import sys; from millstream.cli import app\n"
        "try: app(['--help'], prog_name='millstream')\n"
        "except SystemExit: pass\n"
        "print(*sorted({'apsw', 'lark', 'rich', 'millstream.doctor', 'millstream.embedded.session'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "doctor" in done.stdout
    assert done.stdout.splitlines()[-1] == ""


def test_the_demonstration_ends_well(cli: Any) -> None:
    steps = cli.json("demo")
    told = {one["step"]: one for one in steps}
    assert {"log", "queue", "worker", "server", "fork", "sync", "kill"} <= set(told)
    assert "0 lost" in told["kill"]["outcome"]
    assert 'ms.log("orders")' in told["log"]["code"]
    assert not any("return" in one["code"] for one in steps)
