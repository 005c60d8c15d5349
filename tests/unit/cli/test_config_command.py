"""`millstream config`: where each setting comes from, what is hidden, and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FILE = """\
store = "shop.db"
token = "ms_secret"

[serve]
port = 9000
scrub_share = 0.05

[logs]
retention = "7d"

[queue.create]
lease = "1m"
"""


@pytest.fixture
def file(cli: Any) -> Path:
    path = Path("millstream.toml")
    path.write_text(FILE, encoding="utf-8")
    return path


def origins(cli: Any, *arguments: str) -> dict[tuple[str, str], tuple[Any, str, str]]:
    settings = cli.json(*arguments)
    return {
        (each["command"], each["setting"]): (each["value"], each["origin"], each["place"])
        for each in settings
    }


def test_each_setting_is_shown_with_its_origin(
    cli: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_SERVE_HOST", "::1")
    monkeypatch.setenv("MILLSTREAM_APPEND_BATCH", "7")
    settings = origins(cli, "--ca", "x.pem", "config", "show")
    assert settings["", "store"] == ("./shop.db", "file", "millstream.toml, line 1")
    assert settings["", "ca"] == ("x.pem", "flag", "--ca")
    assert settings["serve", "host"] == ("::1", "environment", "MILLSTREAM_SERVE_HOST")
    assert settings["serve", "port"] == (9000, "file", "millstream.toml, line 5")
    assert settings["serve", "scrub-share"] == (0.05, "file", "millstream.toml, line 6")
    assert settings["serve", "logs-retention"] == ("7d", "file", "millstream.toml, line 9")
    assert settings["serve", "wait-max"] == ("1m", "default", "")
    assert settings["serve", "rooms-across"] == (True, "default", "")
    assert settings["append", "batch"] == ("7", "environment", "MILLSTREAM_APPEND_BATCH")
    assert settings["queue create", "lease"] == ("1m", "file", "millstream.toml, line 12")
    assert ("queue create", "rate") not in settings


def test_the_settings_of_one_command_are_shown(cli: Any, file: Path) -> None:
    settings = origins(cli, "config", "show", "queue", "create")
    assert {command for command, _ in settings} == {"", "queue create"}
    assert settings["queue create", "max-attempts"] == ("5", "default", "")
    cli("config", "show", "queue", code=2)
    assert "there is no command 'queue'" in cli.stderr


def test_secrets_are_hidden(cli: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_CLUSTER_SECRET", "hush")
    monkeypatch.setenv("MILLSTREAM_SERVE_CLUSTER", "nats://me:hush@host:1")
    shown = cli("config", "show")
    assert "ms_secret" not in shown
    assert "hush" not in shown
    settings = origins(cli, "config", "show")
    assert settings["", "token"] == ("(hidden)", "file", "millstream.toml, line 2")
    secret = settings["serve", "cluster-secret-file"]
    assert secret == ("(hidden)", "environment", "MILLSTREAM_CLUSTER_SECRET")
    assert settings["serve", "cluster"][0] == "nats://(hidden)@host:1"
    file.write_text("", encoding="utf-8")
    assert origins(cli, "config", "show")["", "token"] == (None, "default", "")
    monkeypatch.setenv("MILLSTREAM_TOKEN", "hush")
    token = origins(cli, "config", "show")["", "token"]
    assert token == ("(hidden)", "environment", "MILLSTREAM_TOKEN")
    assert origins(cli, "--token", "@t.txt", "config", "show")["", "token"][0] == "@t.txt"


def test_right_settings_are_counted(cli: Any, file: Path) -> None:
    assert cli("config", "check") == "millstream.toml: 6 settings, all valid\n"
    file.unlink()
    assert "there is no millstream.toml" in cli("config", "check")


def test_wrong_values_are_all_told_with_their_lines(
    cli: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FILE.replace('"1m"', '"soon"\nrate = "fast"').replace("9000", "99999")
    file.write_text(text.replace("0.05", "5.0"), encoding="utf-8")
    monkeypatch.setenv("MILLSTREAM_SERVE_BODY_MAX", "large")
    answer = cli.json("config", "check", code=1)
    places = sorted(error.partition(": ")[0] for error in answer["errors"])
    assert places == [
        "MILLSTREAM_SERVE_BODY_MAX",
        "[serve]",
        "millstream.toml, line 12",
        "millstream.toml, line 13",
        "millstream.toml, line 5",
    ]
    cli("config", "check", code=1)
    assert "lease: a duration must look like" in cli.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tokne = 'x'", "line 1: unknown key 'tokne': did you mean 'token'?"),
        ("[sevre]", "line 1: unknown key 'sevre': did you mean 'serve'?"),
        ("[queue.craete]", "line 1: unknown key 'queue.craete': did you mean 'create'?"),
        ("[serve]\nprot = 1", "line 2: [serve] has no option 'prot': did you mean 'port'?"),
        (
            "[logs]\nretenshun = 1",
            "line 2: [logs] has no option 'retenshun': did you mean 'retention'?",
        ),
        (
            "[queue.create]\nlees = 1",
            "line 2: [queue.create] has no option 'lees': did you mean 'lease'?",
        ),
    ],
)
def test_an_unknown_key_has_a_line_and_a_suggestion(
    cli: Any, file: Path, text: str, told: str
) -> None:
    file.write_text(text, encoding="utf-8")
    cli("config", "check", code=2)
    assert told in " ".join(cli.stderr.split())


def test_levels_of_log_lines_have_a_section_of_their_own(cli: Any, file: Path) -> None:
    file.write_text(FILE + '[log_levels]\ncluster = "debug"\ndefault = "info"\n', encoding="utf-8")
    levels = origins(cli, "config", "show")["serve", "log-level"]
    assert levels == (["info", "cluster=debug"], "file", "millstream.toml, line 13")
    assert "all valid" in cli("config", "check")


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ('[log_levels]\nclutser = "debug"\n', "line 14: [log_levels]: log lines have no part"),
        ('[log_levels]\ncluster = "loud"\n', "a level of log lines is debug, info"),
        ("[log_levels]\ncluster = 3\n", "not 'cluster=3'"),
    ],
)
def test_a_wrong_level_of_log_lines_is_refused(
    cli: Any, file: Path, section: str, says: str
) -> None:
    file.write_text(FILE + section, encoding="utf-8")
    cli("config", "check", code=2)
    assert says in " ".join(cli.stderr.split())


def test_levels_that_are_no_section_are_refused(cli: Any, file: Path) -> None:
    file.write_text('log_levels = "debug"\n' + FILE, encoding="utf-8")
    cli("config", "check", code=2)
    assert "line 1: log_levels must be a section" in " ".join(cli.stderr.split())
