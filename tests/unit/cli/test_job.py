"""`millstream job`: list, show, cancel, retry and result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream import Jobs, Reject


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with Jobs(tmp_path / "shop.db") as jobs:
        yield jobs


@pytest.fixture
def tasks(jobs: Jobs) -> dict[str, Any]:
    @jobs.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @jobs.task(name="refuse")
    def refuse() -> None:
        raise Reject("no such address")

    return {"add": add, "refuse": refuse}


@pytest.fixture
def job(cli: Any, tmp_path: Path) -> Any:
    def run(*words: str, **options: Any) -> Any:
        return cli("job", *words, "--store", str(tmp_path / "shop.db"), **options)

    def as_json(*words: str, **options: Any) -> Any:
        return cli.json("job", *words, "--store", str(tmp_path / "shop.db"), **options)

    run.json = as_json  # type: ignore[attr-defined]
    return run


def test_jobs_are_listed_by_state_and_task(jobs: Jobs, tasks: dict[str, Any], job: Any) -> None:
    done, failed = tasks["add"].put(1, 2), tasks["refuse"].put()
    jobs.worker().run(drain=True)
    waiting = tasks["add"].put(3, 4)
    listed = job.json("list")["jobs"]
    assert {info["id"]: info["state"] for info in listed} == {
        done.id: "done",
        failed.id: "failed",
        waiting.id: "waiting",
    }
    assert [info["id"] for info in job.json("list", "--task", "refuse")["jobs"]] == [failed.id]
    (info,) = job.json("list", "--state", "waiting")["jobs"]
    assert info["arguments"] == {"a": 3, "b": 4}
    assert waiting.id in job("list", "--state", "waiting")
    job("list", "--state", "lost", code=2)
    job("list", "--after", waiting.id, code=2)


def test_a_job_is_shown_with_its_attempts_and_its_error(
    jobs: Jobs, tasks: dict[str, Any], job: Any
) -> None:
    failed = tasks["refuse"].put()
    jobs.worker().run(drain=True)
    shown = job.json("show", failed.id)
    assert (shown["task"], shown["state"], len(shown["tries"])) == ("refuse", "failed", 1)
    assert "no such address" in job("show", failed.id)
    job("show", "jobs-999", code=1)
    job("show", "nothing", code=1)


def test_a_result_is_printed_as_json(jobs: Jobs, tasks: dict[str, Any], job: Any) -> None:
    done, failed = tasks["add"].put(1, 2), tasks["refuse"].put()
    job("result", done.id, code=1)
    jobs.worker().run(drain=True)
    assert job("result", done.id) == "3\n"
    assert job.json("result", done.id, "--timeout", "5s") == 3
    job("result", failed.id, code=1)


def test_a_waiting_job_is_cancelled_once(jobs: Jobs, tasks: dict[str, Any], job: Any) -> None:
    waiting, done = tasks["add"].put(1, 2), tasks["add"].put(1, 2)
    job("cancel", waiting.id, "jobs-99", code=1)
    assert waiting.state() == "waiting", "nothing is cancelled if an id is wrong"
    assert job("cancel", waiting.id) == f"{waiting.id} cancelled\n"
    jobs.worker().run(drain=True)
    assert waiting.state() == "cancelled"
    assert "has ended already" in job("cancel", done.id, code=1)


def test_a_failed_job_runs_again(jobs: Jobs, tasks: dict[str, Any], job: Any) -> None:
    failed, done = tasks["refuse"].put(), tasks["add"].put(1, 2)
    jobs.worker().run(drain=True)
    job("retry", failed.id, done.id, code=1)
    job("retry", failed.id, "jobs-99", code=1)
    assert failed.state() == "failed", "nothing is tried again if one job is refused"
    assert job.json("retry", failed.id, failed.id) == {"retried": [failed.id]}
    assert failed.state() == "waiting"
    job("retry", done.id, code=1)


def test_a_key_gets_limits_of_its_own(jobs: Jobs, job: Any) -> None:
    @jobs.task(name="mail", limits={"key": "customer", "running": 2})
    def mail(customer: str) -> None: ...

    mail.put("acme")
    assert job.json("limits") == {"limits": []}
    (limit,) = job.json("limit", "acme", "--running", "10", "--per-minute", "90")["limits"]
    assert limit == {"key": "acme", "queue": "jobs.mail", "running": 10, "per_minute": 90.0}
    assert "acme" in job("limits", "--queue", "jobs.mail")
    job("limits", "--queue", "jobs", code=1)
    job("limit", "acme", code=1)
    job("limit", "acme", "--running", "0", code=2)
    job("limit", "acme", "--per-minute", "0", code=1)
    assert job.json("limit", "acme", "--remove") == {"limits": []}
