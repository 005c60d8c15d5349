"""The parts of worker processes that need no process: lines, journal, files, metrics, queues."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec.structs import replace

from millstream.cli.worker import parse_queues
from millstream.jobs.processes.journal import Journal
from millstream.jobs.processes.lines import EventWriter, shown_s
from millstream.jobs.processes.metrics import metrics_text
from millstream.jobs.processes.reports import Orphan, TaskFigures
from millstream.jobs.processes.running_jobs import RunningJobs, RunningJobsFile
from millstream.jobs.processes.service_manager import ServiceManager
from millstream.jobs.processes.source_files import SourceFiles
from millstream.jobs.reports import JobCancelling, JobFinished, JobOutcome, JobStarted
from millstream.testing import SimulatedClock
from millstream.worker.shift import STOPPED
from millstream.worker_process import endings_of


def started(number: int) -> JobStarted:
    id = f"jobs-{number}"
    return JobStarted(id=id, task="mail", queue="jobs", claim_id=number, attempt=1, wait_s=0.5)


def finished(number: int, outcome: JobOutcome = "done", **facts: Any) -> JobFinished:
    id = f"jobs-{number}"
    return JobFinished(id=id, task="mail", attempt=1, outcome=outcome, run_s=2.0, **facts)


def test_a_journal_knows_what_runs_and_counts_by_task() -> None:
    ended: list[tuple[JobFinished, float]] = []
    journal = Journal(
        kill_after_s=10,
        seconds=lambda: 100.0,
        on_end=lambda job, wait_s: ended.append((job, wait_s)),
    )
    journal(started(1))
    journal(started(2))
    journal(finished(1))
    beat = journal.beat(5)
    assert [job.id for job in beat.running] == ["jobs-2"]
    assert beat.figures == {"mail": TaskFigures(started=2, done=1, wait_s=1.0, run_s=2.0)}
    assert journal.beat(5).figures == {}  # counters since the last heartbeat
    assert [(job.id, wait_s) for job, wait_s in ended] == [("jobs-1", 0.5)]


def test_running_jobs_are_known_after_the_death_of_their_process() -> None:
    file = RunningJobsFile(concurrency=1)
    running = RunningJobs(file.path)
    assert not Path(file.path).exists()  # nothing is left behind
    for number in range(5):
        running(started(number))
    running(finished(1))
    running(finished(2, is_left_running=True))  # its function goes on
    running(finished(3, "dropped"))
    assert {job.id for job in file.read()} == {"jobs-0", "jobs-2", "jobs-4"}
    for number in range(5, 100):  # more than are noted
        running(started(number))
    assert len(file.read()) == 18
    for number in range(100):
        running(finished(number))
    assert file.read() == ()
    running(replace(started(1), queue="q" * 2_000))  # too long to be noted
    assert file.read() == ()
    running(started(2))
    (job,) = file.read()
    assert (job.task, job.queue, job.claim_id, job.attempt) == ("mail", "jobs", 2, 1)
    file.close()


def test_the_file_of_a_child_that_never_started_is_deleted() -> None:
    file = RunningJobsFile(concurrency=10_000)
    assert file.read() == ()
    file.close()
    assert not Path(file.path).exists()


def test_a_cancelled_job_and_a_function_after_its_timeout_have_a_kill_time() -> None:
    journal = Journal(kill_after_s=10, seconds=lambda: 100.0, on_end=lambda job, wait_s: None)
    journal(started(1))
    assert journal.first_kill_s() is None
    journal(JobCancelling(id="jobs-1", attempt=1))
    assert journal.first_kill_s() == 110
    journal(finished(1, "retried"))
    assert journal.first_kill_s() is None
    journal(started(2))
    journal(finished(2, "failed", is_left_running=True))
    assert [job.kill_in_s for job in journal.beat(0).running] == [10]
    journal(finished(2, "dropped"))  # the function has ended after all
    assert (journal.beat(0).running, journal.ended_count) == ((), 2)


def test_a_task_has_a_kill_time_of_its_own() -> None:
    journal = Journal(kill_after_s=10, seconds=lambda: 100.0, on_end=lambda job, wait_s: None)
    journal(replace(started(1), kill_after_s=0.5))
    journal(JobCancelling(id="jobs-1", attempt=1))
    assert journal.first_kill_s() == 100.5
    journal(replace(started(2), kill_after_s=0.0))
    journal(finished(2, "failed", is_left_running=True))
    assert journal.first_kill_s() == 100


def written(*, is_json: bool, job: JobFinished) -> str:
    reading, writing = os.pipe()
    writer = EventWriter(SimulatedClock(), is_json=is_json, has_colour=False, output=writing)
    writer.job(job, 0.5, process=3)
    os.close(writing)
    with open(reading, encoding="utf-8") as lines:
        return lines.read()


def test_a_line_is_text_for_people_and_json_for_programs() -> None:
    job = finished(7, "retried", reason="ValueError: no\nTraceback")
    line = written(is_json=False, job=job)
    assert line.endswith(" retried   mail  jobs-7  waited 500 ms  ran 2 s  ValueError: no\n")
    facts = json.loads(written(is_json=True, job=job))
    assert (facts["event"], facts["level"], facts["process"]) == ("job_retried", "warning", 3)
    assert (facts["waited_ms"], facts["ran_ms"]) == (500, 2000)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0021, "2.1 ms"),
        (0.25, "250 ms"),
        (1.254, "1.25 s"),
        (250, "4 min 10 s"),
        (7300, "2 h 1 min"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert shown_s(seconds) == text


def test_changes_of_python_files_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "venv").mkdir()
    tasks = tmp_path / "shop" / "tasks.py"
    tasks.write_text("1")
    files = SourceFiles(str(tmp_path))
    assert files.changes() == []
    tasks.write_text("22")
    (tmp_path / "new.py").write_text("")
    (tmp_path / "notes.txt").write_text("no Python")
    (tmp_path / "venv" / "library.py").write_text("of others")
    assert files.changes() == ["new.py", "shop/tasks.py"]
    tasks.unlink()
    assert files.changes() == ["shop/tasks.py"]
    assert files.changes() == []


def test_metrics_have_a_line_for_each_task() -> None:
    figures = {'a"b': TaskFigures(started=2, done=1, run_s=0.25)}
    lines = metrics_text(figures, 4).splitlines()
    assert "millstream_worker_processes 4" in lines
    assert 'millstream_job_started_total{task="a\\"b"} 2' in lines
    assert 'millstream_job_run_seconds_total{task="a\\"b"} 0.25' in lines


def test_a_large_sum_of_seconds_keeps_its_digits() -> None:
    text = metrics_text({"mail": TaskFigures(run_s=12_345_678.25)}, 1)
    assert 'millstream_job_run_seconds_total{task="mail"} 12345678.25' in text


def test_without_a_service_manager_nothing_is_sent() -> None:
    manager = ServiceManager({})
    manager.notify("READY=1")
    assert manager.watchdog_s is None
    assert ServiceManager({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}).watchdog_s is None
    assert ServiceManager({"WATCHDOG_USEC": "3000000"}).watchdog_s == 1.5


def test_only_the_attempt_that_ended_its_process_counts() -> None:
    orphans = (
        Orphan("jobs", 7, 2, "mail", "took too long", True),
        Orphan("jobs", 8, 1, "mail", "its process was killed because of jobs-7", False),
    )
    blamed, returned = endings_of(orphans)
    assert (blamed.claims, blamed.reason, blamed.delay_ms) == ([(7, 1, 2)], "took too long", None)
    assert returned.reason.startswith(STOPPED)
    assert returned.delay_ms == 0


def test_queues_are_typed_with_weights() -> None:
    assert parse_queues("mail:3, reports") == (("mail", 3), ("reports", 1))
    for text in ("mail:0", "mail:x", ":3", "mail,mail", ","):
        with pytest.raises(typer.BadParameter, match="queues must look like"):
            parse_queues(text)
