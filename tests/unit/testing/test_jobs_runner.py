"""Jobs in the tests of users: stepped on a simulated clock, or run inside of each put."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import millstream.aio
from millstream import JobContext, JobFailed, Jobs, gather
from millstream.errors import InvalidInput
from millstream.testing import JobsRunner, SimulatedClock, jobs_eagerly

pytest_plugins = ["millstream.testing.fixtures"]

HOUR_S = 3600


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path / "unused.db")


def test_due_jobs_run_when_the_test_asks(jobs: Jobs, tmp_path: Path) -> None:
    calls: list[object] = []

    @jobs.task(name="plain")
    def plain(n: int) -> int:
        calls.append(n)
        return n + 1

    @jobs.task(name="coroutine", queue="other")
    async def coroutine(ctx: JobContext, n: int) -> str:
        calls.append(ctx.attempt)
        plain.put(n)
        return ctx.id

    with JobsRunner(jobs) as runner:
        first, second = plain.put(1), coroutine.put(7)
        assert calls == []
        reports = runner.run_due()
        assert sorted(calls, key=str) == [1, 1, 7]
        assert [report.outcome for report in reports] == ["done"] * 3
        assert (first.result(timeout=0), second.result(timeout=0)) == (2, "other-0")
        assert runner.run_due() == []
    assert not (tmp_path / "unused.db").exists()


def test_time_passes_from_one_due_job_to_the_next(jobs: Jobs) -> None:
    clock = SimulatedClock()
    start_s, times = clock.seconds(), list[float]()

    @jobs.task(name="chain")
    def chain(left: int) -> None:
        times.append(clock.seconds() - start_s)
        if left:
            chain.put_in(timedelta(minutes=10), left - 1)

    with JobsRunner(jobs, clock=clock) as runner:
        chain.put_in(timedelta(minutes=5), 3)
        assert runner.run_due() == []
        assert len(runner.advance(1500)) == 3
        assert times == [300, 900, 1500]
        assert clock.seconds() - start_s == 1500
        runner.advance(HOUR_S)
        assert times == [300, 900, 1500, 2100]


def test_a_failed_attempt_waits_for_its_retry(jobs: Jobs) -> None:
    @jobs.task(name="fail", max_attempts=3, backoff=60)
    def fail() -> None:
        raise ConnectionError("refused")

    with JobsRunner(jobs) as runner:
        job = fail.put()
        assert [report.outcome for report in runner.run_due()] == ["retried"]
        assert job.state() == "scheduled"
        assert [report.outcome for report in runner.advance(HOUR_S)] == ["retried", "failed"]
        with pytest.raises(JobFailed, match="refused"):
            job.result(timeout=0)


def test_schedules_fire_at_their_ticks(jobs: Jobs) -> None:
    calls: list[int] = []

    @jobs.every(timedelta(minutes=10), name="tick")
    @jobs.task(name="tick")
    def tick() -> None:
        calls.append(1)

    with JobsRunner(jobs) as runner:
        runner.run_due()
        runner.advance(HOUR_S)
        assert len(calls) == 6


def test_eager_jobs_run_inside_of_the_put(jobs: Jobs) -> None:
    calls: list[int] = []

    @jobs.task(name="count")
    def count(n: int) -> int:
        calls.append(n)
        if n:
            count.put(n - 1)
        return n

    with jobs_eagerly(jobs) as runner:
        job = count.put(2)
        assert calls == [2, 1, 0]
        assert job.result(timeout=0) == 2
        with jobs.opened().transaction() as tx:
            tx.put(count, 0)
            assert len(calls) == 3
        assert len(calls) == 4
        count.put_in(60, 0)
        assert len(calls) == 4
        runner.advance(60)
        assert len(calls) == 5


def test_an_error_of_an_eager_job_is_raised_at_the_put(jobs: Jobs) -> None:
    @jobs.task(name="fail", max_attempts=1)
    def fail() -> None:
        raise ZeroDivisionError("inside")

    with jobs_eagerly(jobs), pytest.raises(ZeroDivisionError, match="inside"):
        fail.put()
    with jobs_eagerly(jobs, raise_errors=False):
        assert fail.put().state() == "failed"


def test_the_fixtures_end_with_the_test(
    jobs: Jobs,
    jobs_runner: Callable[[Jobs], JobsRunner],
    eager_jobs: Callable[[Jobs], JobsRunner],
) -> None:
    task = jobs.task(name="one")(lambda: 1)
    runner = jobs_runner(jobs)
    job = task.put()
    assert len(runner.run_due()) == 1
    assert job.result(timeout=0) == 1
    eager_jobs(jobs)
    assert task.put().state() == "done"


@pytest.mark.parametrize("is_eager", [True, False])
def test_a_wait_for_a_job_that_does_not_run_ends_at_once(jobs: Jobs, is_eager: bool) -> None:
    @jobs.task(name="tokens")
    def tokens(n: int) -> Iterator[str]:
        yield from ["a", "b"][:n]

    with jobs_eagerly(jobs) if is_eager else JobsRunner(jobs) as runner:
        job = tokens.put_in(60, 2)
        with pytest.raises(TimeoutError, match="has not ended within 5 seconds"):
            job.result(timeout=5)
        for wait in (job.result, lambda: list(job.stream())):
            with pytest.raises(TimeoutError, match=r"no job runs while a test waits: call run_due"):
                wait()
        runner.advance(60)
        assert [chunk.text for chunk in job.stream()] == ["a", "b"]
        silent = tokens.put(0)
        runner.run_due()
        assert list(silent.stream()) == []


def test_the_runner_refuses_jobs_of_coroutines() -> None:
    with pytest.raises(InvalidInput, match="the runner takes Jobs of `millstream`"):
        JobsRunner(millstream.aio.Jobs())  # type: ignore[arg-type]


def test_a_task_cannot_step_the_runner(jobs: Jobs) -> None:
    with JobsRunner(jobs) as runner:
        task = jobs.task(name="step")(runner.run_due)
        task.put()
        with pytest.raises(InvalidInput, match="jobs run already"):
            runner.run_due(raise_errors=True)


def test_chains_and_groups_run_to_their_end(jobs: Jobs) -> None:
    @jobs.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    with JobsRunner(jobs) as runner:
        chain = add.s(1, 2).then(add.s(3)).put()
        group = gather([add.s(1, 2), add.s(3, 4)]).put()
        runner.run_due()
        assert chain.result(timeout=0) == 6
        assert group.result(timeout=0) == [3, 7]
