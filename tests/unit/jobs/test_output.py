"""The output of jobs: chunks that are read live or later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import JobContext, JobFailed, Jobs, Retry
from millstream.jobs.chore_steps import chore_steps
from millstream.jobs.context import SENT
from millstream.jobs.driving import drive
from millstream.jobs.output import output_of
from millstream.queue.model.own_logs import LATER_ID
from millstream.testing import JobsRunner

pytestmark = pytest.mark.embedded


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with Jobs(tmp_path / "jobs.db") as jobs:
        yield jobs


def test_a_generator_streams_its_chunks_and_returns_its_result(jobs: Jobs) -> None:
    @jobs.task(name="tokens")
    def tokens(text: str) -> Iterator[str]:
        yield from text.split()
        return len(text)  # type: ignore[return-value]

    job = tokens.put("to be or not")
    jobs.worker().run(drain=True)
    chunks = list(job.stream())
    assert [chunk.text for chunk in chunks] == ["to", "be", "or", "not"]
    assert [chunk.text for chunk in job.stream(start=chunks[1].offset + 1)] == ["or", "not"]
    assert job.result(timeout=5) == 12


def test_chunks_are_read_while_the_job_runs(jobs: Jobs) -> None:
    was_read = threading.Event()

    @jobs.task(name="counts")
    def counts(ctx: JobContext) -> str:
        ctx.emit({"n": 1})
        assert was_read.wait(10)
        ctx.emit(b"2")
        return "end"

    job = counts.put()
    with jobs.worker():
        stream = job.stream()
        assert next(stream).json() == {"n": 1}
        was_read.set()
        assert [chunk.value for chunk in stream] == [b"2"]
        assert job.result(timeout=5) == "end"


def test_a_second_attempt_writes_behind_the_first(jobs: Jobs) -> None:
    @jobs.task(name="breaks", backoff=0, max_attempts=2)
    def breaks(ctx: JobContext) -> Iterator[str]:
        yield f"attempt {ctx.attempt}"
        raise OSError("broken")

    job = breaks.put()
    jobs.worker().run(drain=True)
    chunks = list(job.stream())
    assert [chunk.text for chunk in chunks] == ["attempt 1", "attempt 2"]
    assert [chunk.headers["job-attempt"] for chunk in chunks] == [1, 2]
    with pytest.raises(JobFailed, match="OSError"):
        job.result(timeout=5)


def test_output_is_deleted_when_results_expire(tmp_path: Path) -> None:
    with Jobs(tmp_path / "jobs.db", keep_results=0.05) as jobs:
        job = jobs.task(name="one")(one).put()
        jobs.worker().run(drain=True)
        ms = jobs.opened()
        log = f"jobs.output.{job.id}"
        with jobs.worker():
            chores = ms.queue("jobs.chores")
            assert chores.wait(LATER_ID, timeout=60) is not None
        assert [info.name for info in ms.logs() if info.name == log] == []


def one() -> Iterator[int]:
    yield 1


def test_output_of_a_dead_worker_is_deleted_when_the_result_expires(jobs: Jobs) -> None:
    @jobs.task(name="quiet")
    def quiet(ctx: JobContext) -> None: ...

    with JobsRunner(jobs) as runner:
        job = quiet.put()
        session, log = runner.ms.session, runner.ms.log(output_of(job.id))
        (message,) = runner.ms.queue("jobs").claim(1, lease=30)
        sent: list[Any] = []
        context = JobContext(
            "quiet",
            message,
            session.limits,
            None,
            keep_s=3600,
            send=lambda c: sent.append(c) or SENT,
        )
        context.emit("one")
        context.emit("two")
        for command in sent:
            session.execute(command)  # and the worker dies

        (chore,) = runner.ms.queue("jobs.chores").peek(9, state="delayed")

        def expire() -> None:
            now_ms = session.clock.wall_ms()
            drive(chore_steps(chore.value, session.limits, now_ms), session.execute)

        with pytest.raises(Retry, match="the job has not ended"):
            expire()
        runner.clock.advance(40)
        runner.run_due()
        assert job.state() == "done"
        with pytest.raises(Retry, match="the result has not expired") as again:
            expire()
        assert again.value.after is not None
        assert log.end_offset() == 2
        runner.clock.advance(3700)
        expire()
        assert log.end_offset() == 0


def test_coroutines_stream_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with millstream.aio.Jobs(tmp_path / "jobs.db") as jobs:

            @jobs.task(name="tokens")
            async def tokens(n: int) -> AsyncIterator[int]:
                for number in range(n):
                    yield number

            @jobs.task(name="emits")
            async def emits(ctx: JobContext) -> None:
                await ctx.emit("x")

            first, second = await tokens.put(3), await emits.put()
            async with jobs.worker(concurrency=2):
                assert [chunk.json() async for chunk in first.stream()] == [0, 1, 2]
                assert [chunk.text async for chunk in second.stream()] == ["x"]

    asyncio.run(main())
