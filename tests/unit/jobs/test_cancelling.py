"""Progress and cancelling of jobs: facts that every process sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream import JobCancelled, JobCancelling, JobContext, JobFinished, JobProgress, Jobs
from millstream.errors import CannotOpen, InvalidInput
from millstream.threads import job_worker
from millstream.threads.queue import Queue

pytestmark = pytest.mark.embedded


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with Jobs(tmp_path / "jobs.db") as jobs:
        yield jobs


def test_progress_is_seen_while_the_job_runs(jobs: Jobs) -> None:
    noted, was_seen = threading.Event(), threading.Event()

    @jobs.task(name="works")
    def works(ctx: JobContext) -> None:
        ctx.progress(0.25, "a quarter")
        ctx.progress(0.251, "a quarter")
        noted.set()
        assert was_seen.wait(10)

    job = works.put()
    assert job.progress() is None
    with jobs.worker():
        assert noted.wait(10)
        assert jobs.get(job.id).progress() == JobProgress(0.25, "a quarter")
        was_seen.set()
        job.result(timeout=10)


@pytest.mark.parametrize("fraction", [-0.1, 1.5, "half", True, None, float("nan")])
def test_a_wrong_progress_is_refused(jobs: Jobs, fraction: Any) -> None:
    errors = []

    @jobs.task(name="works")
    def works(ctx: JobContext) -> None:
        try:
            ctx.progress(fraction)
        except InvalidInput as error:
            errors.append(str(error))

    works.put()
    jobs.worker().run(drain=True)
    assert [error.split(",")[0] for error in errors] == ["progress is a number from 0 to 1"]


def test_a_job_that_was_cancelled_without_a_worker_never_starts(jobs: Jobs) -> None:
    called = []
    job = jobs.task(name="note")(lambda: called.append(1)).put()
    assert job.cancel()
    jobs.worker().run(drain=True)
    assert called == []
    assert job.state() == "cancelled"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_running_job_is_asked_to_end(jobs: Jobs, is_async: bool) -> None:
    started, reports = threading.Event(), list[Any]()

    async def coroutine() -> None:
        started.set()
        await asyncio.Event().wait()

    def plain(ctx: JobContext) -> None:
        started.set()
        while not ctx.cancelled:
            threading.Event().wait(0.01)
        raise InterruptedError

    job = jobs.task(name="waits", max_attempts=1)(coroutine if is_async else plain).put()
    with jobs.worker(on_job=reports.append):
        assert started.wait(10)
        assert job.cancel()
        with pytest.raises(JobCancelled):
            job.result(timeout=10)
    assert [report.id for report in reports if isinstance(report, JobCancelling)] == [job.id]
    assert [report.outcome for report in reports if isinstance(report, JobFinished)] == [
        "cancelled"
    ]


def test_a_job_that_ends_well_after_a_cancel_is_done(jobs: Jobs) -> None:
    started = threading.Event()

    @jobs.task(name="ends")
    def ends(ctx: JobContext) -> int:
        started.set()
        while not ctx.cancelled:
            threading.Event().wait(0.01)
        return 7

    job = ends.put()
    with jobs.worker():
        assert started.wait(10)
        assert job.cancel()
        assert job.result(timeout=10) == 7
    assert not job.cancel()


def test_a_worker_hears_of_cancels_after_its_store_was_away(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_cancels, was_away, started = Queue.wait_cancels, threading.Event(), threading.Event()

    def away_once(queue: Queue, seen: int = 0, **options: Any) -> Any:
        if not was_away.is_set():
            was_away.set()
            raise CannotOpen("the server is away", again=True)
        return wait_cancels(queue, seen, **options)

    @jobs.task(name="waits")
    def waits(ctx: JobContext) -> None:
        started.set()
        while not ctx.cancelled:
            threading.Event().wait(0.01)
        raise InterruptedError

    monkeypatch.setattr(Queue, "wait_cancels", away_once)
    monkeypatch.setattr(job_worker, "PAUSE_S", 0.01)
    job = waits.put()
    with jobs.worker():
        assert started.wait(10)
        assert was_away.wait(10)
        assert job.cancel()
        with pytest.raises(JobCancelled):
            job.result(timeout=10)


def test_jobs_that_match_a_filter_are_cancelled(jobs: Jobs) -> None:
    mail = jobs.task(name="mail")(lambda n: None)
    other = jobs.task(name="other", queue="others")(lambda: None)
    handles = [*mail.put_many([(n,) for n in range(3)]), mail.put_in(60, 4)]
    kept = other.put()
    with pytest.raises(InvalidInput, match="cancelled by a filter, a text, not by 5"):
        jobs.cancel(5)  # type: ignore[arg-type]
    assert jobs.cancel("task = 'mail'", dry_run=True) == 4
    assert [job.state() for job in handles] == ["waiting"] * 3 + ["scheduled"]
    assert jobs.cancel("task = 'mail'", queue="others") == 0
    assert jobs.cancel("task = 'mail'") == 4
    assert [job.state() for job in handles] == ["cancelled"] * 4
    assert kept.state() == "waiting"
