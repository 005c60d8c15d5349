"""`millstream put`, `millstream queue` and `millstream exec`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.format import rfc


def shell(script: str) -> str:
    return f"sh -c {shlex.quote(script)}"


@pytest.fixture
def jobs(cli: Any) -> Any:
    cli("queue", "create", "jobs", "--max-attempts", "2", "--backoff", "0s")
    return cli


def claimed(cli: Any, count: int = 1) -> list[dict[str, Any]]:
    out = cli("queue", "claim", "jobs", "-n", str(count), "--json")
    return [msgspec.json.decode(line) for line in out.splitlines()]


def facts(cli: Any) -> dict[str, Any]:
    found: dict[str, Any] = cli.json("queue", "info", "jobs")
    return found


def test_a_dead_letter_log_is_none_of_the_sources(cli: Any) -> None:
    create = ("queue", "create", "mail", "--source", "mail*", "--dead-letter", "mail-dead")
    assert "is one of its own sources" in cli.error(*create)


def test_times_are_told_as_times(jobs: Any) -> None:
    jobs("put", "jobs", "a")
    before = datetime.now(UTC)
    (message,) = claimed(jobs)
    until = datetime.fromisoformat(message["until"])
    assert before + timedelta(seconds=29) < until < before + timedelta(seconds=90)
    (one,) = jobs.json("queue", "attempts", "jobs", message["claim_id"])
    assert abs(datetime.fromisoformat(one["claimed"]) - before) < timedelta(minutes=1)
    assert one["ended"] is None
    assert datetime.fromisoformat(facts(jobs)["created"]) <= until
    table = jobs("queue", "attempts", "jobs", message["claim_id"])
    assert one["claimed"][:10] in table


def test_a_queue_is_printed_as_the_records_of_the_rfc(jobs: Any) -> None:
    jobs("put", "jobs", "a", "b")
    (message,) = claimed(jobs)
    jobs("queue", "ack", "jobs", message["claim"])
    lines = [line.split("\t") for line in jobs("queue", "records", "jobs").splitlines()]
    assert [key[:4] for key, _, _ in lines] == ["0102", "0103", "0104", "0105", "0106"]
    assert [said.split(" in bucket")[0] for _, _, said in lines[:3]] == [
        "active: 1 available, 0 in flight",
        "done: 1",
        "failed: 0",
    ]
    out = jobs("queue", "records", "jobs", "--json")
    found = [msgspec.json.decode(line) for line in out.splitlines()]
    assert [[one["key"], one["value"], one["description"]] for one in found] == lines
    (attempt,) = rfc.decode_attempts(bytes.fromhex(found[3]["value"]))
    assert attempt.claimed_at_ms > 0
    assert "there is no queue" in jobs.error("queue", "records", "other")


def test_a_queue_is_made_once(cli: Any) -> None:
    assert cli("queue", "create", "mail", "--lease", "1m") == "queue mail created\n"
    assert cli("queue", "create", "mail", "--lease", "1m") == "queue mail exists already\n"
    altered = cli("queue", "create", "mail", "--lease", "2m", "--rate", "5")
    assert altered == "queue mail altered: lease, rate\n"
    again = cli("queue", "create", "mail", "--lease", "2m", "--json")
    assert json.loads(again) == {"queue": "mail", "created": False, "altered": ["rate"]}
    told = cli.error("queue", "create", "mail", "--lease", "2m", "--start", "earliest")
    assert "start is 'latest', asked for 'earliest'" in told


def test_what_is_put_to_a_queue_that_is_not_there_is_refused(cli: Any) -> None:
    cli("queue", "create", "other")
    assert "millstream queue create" in cli.error("put", "mail", "x")
    assert "millstream queue create" in cli.error("append", "queue:mail", "x")


def test_every_setting_reaches_the_spec(cli: Any) -> None:
    cli(
        *("queue", "create", "mail", "--source", "orders*", "--source", "refunds"),
        *("--filter", "total > 10", "--start", "earliest", "--max-attempts", "7"),
        *("--lease", "2m", "--backoff", "1s,10s,1m", "--delay", "5s", "--done-retention", "1d"),
        *("--bucket-exponent", "2", "--dead-letter", "dead", "--description", "Letters"),
    )
    spec = cli.json("queue", "info", "mail")["spec"]
    assert spec["sources"] == ["orders*", "refunds"]
    assert (spec["filter"], spec["start"], spec["max_attempts"]) == ("total > 10", "earliest", 7)
    assert (spec["lease"], spec["delay"], spec["done_retention"]) == (120, 5, 86400)
    assert spec["backoff"]["waits"] == [1, 10, 60]
    assert (spec["bucket_exponent"], spec["dead_letter"]) == (2, "dead")
    assert "Letters" in cli("queue", "info", "mail")


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [("5s", "fixed", "5s"), ("2s*3", "exponential", "2s*3, up to 1h"), ("1s,1m", "list", "1s,1m")],
)
def test_a_backoff_is_written_in_three_ways(cli: Any, text: str, kind: str, shown: str) -> None:
    cli("queue", "create", "jobs", "--backoff", text)
    assert facts(cli)["spec"]["backoff"]["kind"] == kind
    assert f"backoff\t{shown}\n" in cli("queue", "info", "jobs")


def test_altering_changes_only_what_is_given(jobs: Any) -> None:
    found = jobs.json("queue", "alter", "jobs", "--lease", "13h", "--dead-letter", "dead")
    assert (found["spec"]["lease"], found["spec"]["dead_letter"]) == (13 * 3_600, "dead")
    assert found["spec"]["max_attempts"] == 2
    found = jobs.json("queue", "alter", "jobs", "--dead-letter", "")
    assert found["spec"]["dead_letter"] == ""
    jobs("queue", "alter", "jobs", code=2)


def test_messages_are_put_claimed_and_acknowledged(jobs: Any) -> None:
    assert jobs("put", "jobs", "a", "b") == "2 messages put\n"
    assert jobs.json("put", "jobs", "-k", "k", "-H", "n=1", input=b"c\nd\n")["count"] == 2
    first, second, third = claimed(jobs, 3)
    assert [m["value"] for m in (first, second, third)] == ["a", "b", "c"]
    assert (third["key"], third["headers"]["n"]) == ("k", 1)
    assert first["claim"] == f"{first['claim_id']}:1"
    assert isinstance(first["claim_id"], str)
    assert jobs("queue", "ack", "jobs", first["claim"]) == "1 message acknowledged\n"
    line = jobs("queue", "claim", "jobs", "--ack", second["claim"])
    assert line.endswith(":1\tk\td\n")
    assert (facts(jobs)["done"], facts(jobs)["in_flight"]) == (2, 2)


def test_raw_and_json_lines(jobs: Any) -> None:
    jobs("put", "jobs", "--raw", input=b"a\nb\n")
    jobs("put", "jobs", "--json-lines", input=b'{"x": 1}\n')
    assert "not JSON" in jobs.error("put", "jobs", "--json-lines", "nope")
    assert [m["value"] for m in claimed(jobs, 5)] == ["a\nb\n", {"x": 1}]


def test_a_message_is_followed_by_the_id_that_putting_told(jobs: Any) -> None:
    told = json.loads(jobs("put", "jobs", "a", "b", "--json"))
    second = str(told["first_id"] + 1)
    assert jobs.json("queue", "message", "jobs", second)["state"] == "available"
    first, _ = claimed(jobs, 2)
    jobs("queue", "fail", "jobs", first["claim"], "--reason", "why")
    found = jobs.json("queue", "message", "jobs", str(told["first_id"]))
    assert (found["state"], found["attempts"], found["reason"]) == ("failed", 1, "why")
    assert "in_flight" in jobs("queue", "message", "jobs", second)
    assert "unknown" in jobs("queue", "message", "jobs", "999")


def test_a_message_is_tried_again_then_failed_then_redriven(jobs: Any) -> None:
    jobs("put", "jobs", "work")
    (message,) = claimed(jobs)
    jobs("queue", "nack", "jobs", message["claim"], "--reason", "not yet")
    (message,) = claimed(jobs)
    assert message["attempt"] == 2
    jobs("queue", "fail", "jobs", message["claim"], "--reason", "never")
    shown = jobs("queue", "peek", "jobs", "--state", "failed")
    assert shown == f"{message['claim']}\t-\twork\tnever\n"
    tries = jobs.json("queue", "attempts", "jobs", message["claim_id"])
    assert [(t["outcome"], t["reason"]) for t in tries] == [
        ("again", "not yet"),
        ("failed", "never"),
    ]
    assert "never" in jobs("queue", "attempts", "jobs", message["claim"])
    assert jobs.json("queue", "redrive", "jobs", "--dry-run")["redriven"] == 1
    assert jobs("queue", "redrive", "jobs") == "1 message available again\n"
    assert claimed(jobs)[0]["attempt"] == 1


def test_a_lost_lease_is_one_clear_line(jobs: Any) -> None:
    jobs("put", "jobs", "work")
    (message,) = claimed(jobs)
    jobs("queue", "nack", "jobs", message["claim"])
    claimed(jobs)
    assert "lease" in jobs.error("queue", "ack", "jobs", message["claim"])


def test_pausing_purging_and_deleting(jobs: Any) -> None:
    jobs("put", "jobs", "a", "b", "c")
    jobs("queue", "pause", "jobs")
    assert claimed(jobs) == []
    assert facts(jobs)["paused"]
    jobs("queue", "resume", "jobs")
    assert len(claimed(jobs)) == 1
    assert jobs("queue", "purge", "jobs", "--yes") == "2 messages deleted\n"
    assert "purged" in jobs.error("queue", "purge", "jobs", "--state", "done", "--yes")
    assert jobs.json("queue", "delete", "jobs", "--yes") == {"queue": "jobs", "deleted": True}
    assert jobs.json("queue", "list") == []


def test_queues_are_listed(jobs: Any) -> None:
    jobs("queue", "create", "mail")
    assert [q["name"] for q in jobs.json("queue", "list")] == ["jobs", "mail"]
    assert [q["name"] for q in jobs.json("queue", "list", "m*")] == ["mail"]
    assert jobs("queue", "list").startswith("queue\tavailable\t")


@pytest.mark.parametrize(
    "command",
    [
        ("put", "none", "x"),
        ("queue", "info", "none"),
        ("queue", "claim", "none"),
        ("queue", "delete", "none"),
        ("exec", "none", "true"),
    ],
)
def test_an_unknown_queue_is_one_clear_line(jobs: Any, command: tuple[str, ...]) -> None:
    assert "there is no queue 'none'" in jobs.error(*command)


def test_a_claim_that_is_none_is_refused(jobs: Any) -> None:
    for text in ("5", "a:1", "5:"):
        jobs("queue", "ack", "jobs", text, code=2)
    jobs("exec", "jobs", "no-such-program-anywhere", code=2)
    jobs("exec", "jobs", "'", code=2)


def test_a_command_works_on_every_message(jobs: Any, tmp_path: Path) -> None:
    jobs("put", "jobs", "-k", "key", "-H", "to-whom=Ada", "one", "two")
    script = 'echo "$(cat) $MILLSTREAM_KEY $MILLSTREAM_HEADER_TO_WHOM $MILLSTREAM_ATTEMPT" >> out'
    stats = jobs.json("exec", "jobs", "--drain", shell(script))
    assert (stats["done"], stats["retried"], stats["lost"]) == (2, 0, 0)
    assert (tmp_path / "out").read_text() == "one key Ada 1\ntwo key Ada 1\n"


def test_exit_codes_decide(jobs: Any) -> None:
    jobs("put", "jobs", "0", "1", "75", "100")
    script = 'read code; echo first >&2; echo "code $code" >&2; exit $code'
    stats = jobs.json("exec", "jobs", "--drain", "-c", "4", shell(script))
    assert (stats["done"], stats["retried"], stats["failed"]) == (1, 2, 3)
    lines = jobs("queue", "peek", "jobs", "--state", "failed").splitlines()
    told = {tuple(line.split("\t")[2:]) for line in lines}
    assert told == {("1", "code 1"), ("75", "code 75"), ("100", "code 100")}
    attempts = {line.split("\t")[2]: line.split("\t")[0].split(":")[1] for line in lines}
    assert attempts == {"1": "2", "75": "2", "100": "1"}


def test_a_command_over_its_time_is_killed_and_tried_again(jobs: Any) -> None:
    jobs("put", "jobs", "x")
    script = 'test "$MILLSTREAM_ATTEMPT" = 2 || sleep 1000'
    stats = jobs.json(*("exec", "jobs", "--drain", "--time-limit", "1s", shell(script)))
    assert (stats["done"], stats["retried"]) == (1, 1)


def test_sigterm_lets_the_running_command_finish(
    jobs: Any, program: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    jobs("put", "jobs", "a", "b")
    os.mkfifo(tmp_path / "release")
    with program("exec", "jobs", shell("echo begun; cat release")) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"begun\n"
        worker.send_signal(signal.SIGTERM)
        (tmp_path / "release").write_bytes(b"go\n")
        out, err = worker.communicate()
    assert (worker.returncode, out) == (0, b"go\n")
    assert err.endswith(b"1 done, 0 retried, 0 failed, 0 lost\n")
    assert (facts(jobs)["done"], facts(jobs)["available"]) == (1, 1)


def test_a_killed_worker_loses_nothing(
    jobs: Any, program: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    jobs("queue", "alter", "jobs", "--max-attempts", "9", "--lease", "500ms")
    jobs("put", "jobs", input=b"".join(b"%d\n" % n for n in range(20)))
    with program("exec", "jobs", "-c", "2", shell("echo $(cat)")) as worker:
        assert worker.stdout is not None
        for _ in range(5):
            worker.stdout.readline()
        worker.kill()
    jobs("exec", "jobs", "--drain", "-c", "4", shell("cat >/dev/null"))
    found = facts(jobs)
    assert (found["done"], found["failed"], found["in_flight"]) == (20, 0, 0)


def test_a_failed_message_is_replaced_from_an_argument_or_stdin(jobs: Any) -> None:
    jobs("put", "jobs", "amount: many", "--header", "kind=bill")
    (failed,) = claimed(jobs)
    jobs("queue", "fail", "jobs", failed["claim"], "--reason", "no number")
    told = jobs.json("queue", "replace", "jobs", failed["claim_id"], '{"amount": 7}', "-H", "n=1")
    assert (told["queue"], str(told["replaced"])) == ("jobs", str(failed["claim_id"]))
    (mended,) = claimed(jobs)
    assert (mended["value"], mended["headers"]["n"]) == ('{"amount": 7}', 1)
    assert "kind" not in mended["headers"]
    tries = jobs.json("queue", "attempts", "jobs", mended["claim_id"])
    assert tries[0]["outcome"] == "failed"

    jobs("queue", "fail", "jobs", mended["claim"])
    said = jobs("queue", "replace", "jobs", mended["claim_id"], "--key", "k", input=b"again")
    assert said.startswith(f"message {mended['claim_id']} replaced")
    assert "is not failed" in jobs.error("queue", "replace", "jobs", mended["claim_id"], "x")


def put_id(cli: Any, *arguments: str) -> str:
    return str(cli.json("put", "jobs", *arguments)["first_id"])


def test_a_message_is_cancelled_and_awaited_by_its_id(jobs: Any) -> None:
    now, later = put_id(jobs, "now"), put_id(jobs, "later", "--delay", "1h")
    shown = jobs("queue", "peek", "jobs", "--state", "delayed", "--json").splitlines()
    (delayed,) = [msgspec.json.decode(line) for line in shown]
    assert (delayed["id"], delayed["value"]) == (int(later), "later")
    line = jobs("queue", "peek", "jobs", "--state", "delayed").rstrip().split("\t")
    assert (line[0], line[2:]) == (later, ["-", "later"])
    assert jobs("queue", "cancel", "jobs", later) == f"message {later} cancelled\n"
    told = jobs.json("queue", "wait", "jobs", later)
    assert (told["id"], told["state"]) == (int(later), "cancelled")
    claimed(jobs)
    assert "its state is 'in_flight'" in jobs.error("queue", "cancel", "jobs", now)
    assert "has not ended yet" in jobs.error("queue", "wait", "jobs", now, "--timeout", "1ms")
    assert "no put returned this id" in jobs.error("queue", "wait", "jobs", "77")


def test_a_repeat_is_told_when_it_is_put(cli: Any) -> None:
    cli("queue", "create", "jobs", "--dedup-by", "d", "--dedup-while", "running")
    assert "1 message put" in cli("put", "jobs", "a", "--dedup", "x")
    assert "nothing put: a repeat of message 0" in cli("put", "jobs", "b", "--dedup", "x")
    told = cli.json("put", "jobs", "b", "--dedup", "x")
    assert told == {"queue": "jobs", "count": 0, "first_id": 0, "repeated": True}
    assert "dropped while the first message waits or runs" in cli("queue", "info", "jobs")


def test_bursts_are_settings_of_rates(cli: Any) -> None:
    cli("queue", "create", "jobs", "--rate", "10", "--burst", "3")
    assert "up to 3 at once" in cli("queue", "info", "jobs")
    cli("queue", "create", "other", "--burst", "3", code=2)
    assert "--burst has no effect without --rate" in cli.stderr
