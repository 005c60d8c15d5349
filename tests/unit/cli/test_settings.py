"""The settings of a queue: created, altered, shown; and redriving at a pace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.cli.display import cell, per_second
from millstream.cli.settings import spec_facts
from millstream.queue.model.spec import QueueSpec

ALL = (
    *("--priority-by", "prio", "--priority-step", "5m", "--group-by", "_key"),
    *("--group-in-flight", "4", "--group-rate", "2.5", "--max-in-flight", "100"),
    *("--rate", "50", "--dedup-by", "id", "--dedup-window", "1h"),
)


def spec(cli: Any, queue: str = "jobs") -> dict[str, Any]:
    found: dict[str, Any] = cli.json("queue", "info", queue)["spec"]
    return found


def test_every_choice_reaches_the_spec(cli: Any) -> None:
    cli("queue", "create", "jobs", *ALL)
    found = spec(cli)
    assert (found["priority_by"], found["priority_step"]) == ("prio", 300)
    assert (found["group_by"], found["group_in_flight"], found["group_rate"]) == ("_key", 4, 2.5)
    assert (found["max_in_flight"], found["rate"]) == (100, 50)
    assert (found["dedup_by"], found["dedup_window"]) == ("id", 3_600)


def test_altering_to_the_same_choices_gives_the_same_spec(cli: Any) -> None:
    cli("queue", "create", "jobs", *ALL)
    cli("queue", "create", "later")
    cli("queue", "alter", "later", *ALL)
    assert spec(cli, "later") == spec(cli)


def test_altering_leaves_the_rest_and_takes_away(cli: Any) -> None:
    cli("queue", "create", "jobs", *ALL)
    cli("queue", "alter", "jobs", "--rate", "0", "--dedup-by", "")
    found = spec(cli)
    assert (found["rate"], found["dedup_by"]) == (0, "")
    assert (found["max_in_flight"], found["group_rate"], found["priority_by"]) == (100, 2.5, "prio")


def test_groups_do_not_change_under_messages_that_wait(cli: Any) -> None:
    cli("queue", "create", "jobs", "--group-by", "tenant")
    cli("put", "jobs", "a", "b", "--group", "ada")
    cli("queue", "claim", "jobs")
    told = cli.error("queue", "alter", "jobs", "--group-in-flight", "5")
    assert "only while nothing waits" in told
    cli("queue", "alter", "jobs", "--group-rate", "5")
    assert spec(cli)["group_rate"] == 5


def test_create_shows_defaults_and_alter_does_not(cli: Any) -> None:
    made, altered = (cli("queue", name, "--help") for name in ("create", "alter"))
    for option in (*ALL[::2], "--lease", "--description"):
        assert option in made
        assert option in altered
    assert "default: (30s)" in made
    assert "--start" not in altered
    assert "(30s)" not in altered
    assert altered.count("default: ") == 2, "of the store and of the token"


def test_a_file_of_settings_and_a_variable_reach_shared_options(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[queue.create]\nmax-in-flight = 7\nrate = 3\n"
    Path("millstream.toml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("MILLSTREAM_QUEUE_CREATE_RATE", "4")
    cli("queue", "create", "jobs")
    assert (spec(cli)["max_in_flight"], spec(cli)["rate"]) == (7, 4)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--priority-step", "1m"], "has no effect without --priority-by"),
        (["--group-rate", "1"], "has no effect without --group-by"),
        (["--group-in-flight", "1"], "has no effect without --group-by"),
        (["--dedup-window", "1m"], "has no effect without --dedup-by"),
        (["--dedup-by", "id", "--dedup-window", "long"], "a duration must look like"),
        (["--max-in-flight", "-1"], "range"),
        (["--max-in-flight", "1.5"], "--max-in-flight"),
        (["--rate", "fast"], "--rate"),
        (["--rate", "-1"], "range"),
    ],
)
def test_a_wrong_command_line_makes_and_alters_nothing(
    cli: Any, arguments: list[str], told: str
) -> None:
    cli("queue", "create", "there")
    before = spec(cli, "there")
    for command in (["create", "jobs"], ["alter", "there"]):
        cli("queue", *command, *arguments, code=2)
        assert told in " ".join(cli.stderr.split())
    assert spec(cli, "there") == before
    assert [found["name"] for found in cli.json("queue", "list")] == ["there"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rate", "nan"], "rate is from"),
        (["--rate", "inf"], "rate is from"),
        (["--priority-by", "p", "--priority-step", "0s"], "--priority-step is from"),
        (["--dedup-by", "d", "--dedup-window", "8d"], "--dedup-window is from"),
        (["--max-in-flight", "10000001"], "--max-in-flight is from 0"),
    ],
)
def test_what_makes_no_sense_is_one_clear_line(cli: Any, arguments: list[str], told: str) -> None:
    assert told in cli.error("queue", "create", "jobs", *arguments)
    assert cli.json("queue", "list") == []


@pytest.mark.parametrize(
    ("chosen", "name", "shown"),
    [
        ({}, "priorities", "-"),
        ({"priority_by": "p"}, "priorities", "by header p, a level counts as 1m of waiting"),
        ({}, "groups", "-"),
        ({"group_by": "_key"}, "groups", "by key, one of each at a time, in order"),
        ({"group_by": "t", "group_in_flight": 0}, "groups", "by header t, shared fairly"),
        (
            {"group_by": "t", "group_in_flight": 5, "group_rate": 0.5},
            "groups",
            "by header t, up to 5 of each in flight, 0.5 per second each",
        ),
        ({}, "caps", "-"),
        ({"max_in_flight": 1000, "rate": 20.0}, "caps", "1,000 in flight, 20 per second"),
        ({"dedup_by": "\x1b"}, "repeats", "by header \\x1b, dropped within 5m"),
        ({"delay": 5}, "delay", "5s"),
    ],
)
def test_a_spec_is_shown_in_words(chosen: dict[str, Any], name: str, shown: str) -> None:
    assert cell(dict(spec_facts(QueueSpec(**chosen)))[name]) == shown


def test_a_rate_is_shown_as_it_was_typed() -> None:
    rates = [5.0, 2.5, 1e6, 0.125]
    assert [per_second(rate).split()[0] for rate in rates] == ["5", "2.5", "1,000,000", "0.125"]


def test_info_and_list_say_how_old_and_how_fast(cli: Any) -> None:
    cli("queue", "create", "jobs")
    empty = cli("queue", "info", "jobs")
    assert "oldest\t-\n" in empty
    assert "duplicates" not in empty
    cli("put", "jobs", *"abc")
    cli("queue", "claim", "jobs", "-n", "2")
    found = cli.json("queue", "info", "jobs")
    assert found["oldest_s"] >= 0
    assert found["in_per_second"] > 0
    assert found["done_per_second"] == 0
    shown = dict(line.split("\t") for line in cli("queue", "info", "jobs").splitlines())
    assert shown["oldest"].endswith(("s", "m"))
    assert shown["done/s"] == "0.0"
    head, row = (line.split("\t") for line in cli("queue", "list").splitlines())
    assert head[7:] == ["oldest", "in/s", "done/s", "paused"]
    assert row[7].endswith(("s", "m"))


def test_json_carries_every_field(cli: Any) -> None:
    from millstream import QueueInfo

    cli("queue", "create", "jobs")
    (listed,) = cli.json("queue", "list")
    assert set(listed) == {field.name for field in msgspec.structs.fields(QueueInfo)}
    assert set(listed["spec"]) == {field.name for field in msgspec.structs.fields(QueueSpec)}


@pytest.fixture
def failed(cli: Any) -> Any:
    cli("queue", "create", "jobs")
    cli("put", "jobs", *"abc")
    claims = [line.split("\t")[0] for line in cli("queue", "claim", "jobs", "-n", "3").splitlines()]
    cli("queue", "fail", "jobs", *claims)
    return cli


def test_redriven_messages_come_back_at_a_pace(failed: Any) -> None:
    told = failed("queue", "redrive", "jobs", "--rate", "0.001")
    assert told == "3 messages available again, 0.001 per second\n"
    found = failed.json("queue", "info", "jobs")
    assert (found["available"], found["delayed"], found["failed"]) == (1, 2, 0)


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "1e99", "1e-99", "fast"])
def test_a_pace_that_is_none_is_refused(failed: Any, rate: str) -> None:
    failed("queue", "redrive", "jobs", "--rate", rate, code=2)
    assert failed.json("queue", "info", "jobs")["failed"] == 3
