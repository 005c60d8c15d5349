"""`millstream schedule`: put, list, show, pause, resume, trigger and delete."""

from __future__ import annotations

from typing import Any

PUT = ("schedule", "put", "nightly", "--task", "shop:report", "--every", "30 1 * * *")


def test_a_schedule_from_its_put_to_its_end(cli: Any) -> None:
    cli("queue", "create", "jobs")
    made = cli.json(*PUT, "--tz", "Europe/Lisbon", "--arguments", '{"day": 1}')
    assert (made["state"], made["tz"], made["arguments"]) == (
        "created",
        "Europe/Lisbon",
        {"day": 1},
    )
    assert "changed" in cli(*PUT, "--missed", "skip")
    (listed,) = cli.json("schedule", "list")
    assert (listed["name"], listed["missed"], listed["paused"]) == ("nightly", "skip", False)
    assert "shop:report" in cli("schedule", "list")
    assert cli.json("schedule", "list", "x*") == []
    assert cli.json("schedule", "pause", "nightly")["next"] is None
    assert cli.json("schedule", "resume", "nightly")["next"] is not None
    assert len(cli.json("schedule", "show", "nightly")["upcoming"]) == 5
    assert "30 1 * * *" in cli("schedule", "show", "nightly")
    assert cli.json("schedule", "trigger", "nightly") == {"schedule": "nightly", "job": "jobs-0"}
    assert cli.json("queue", "pop", "jobs")["headers"]["job-schedule"] == "nightly"
    assert cli.json("schedule", "delete", "nightly", "--yes")["deleted"]
    assert "does not exist" in cli("schedule", "delete", "nightly", "--yes")


def test_wrong_schedules_are_refused_in_a_sentence(cli: Any) -> None:
    put = PUT[:-1]
    assert "is no cron expression" in cli.error(*put, "99 1 * * *")
    assert "'daily' is no cron expression" in cli.error(*put, "daily")
    assert "is no time zone" in cli.error(*PUT, "--tz", "Mars")
    assert "missed is 'skip', 'once' or 'all'" in cli.error(*PUT, "--missed", "maybe")
    assert "in the past" in cli.error(*PUT, "--start", "2020-01-01T00:00")
    assert "there is no schedule 'nightly'" in cli.error("schedule", "pause", "nightly")
    assert cli.json("schedule", "list") == []
