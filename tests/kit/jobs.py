"""Every kind of job, on any store: what a worker and its callers tell each other through the store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream import JobCancelled, JobContext, JobFailed, JobProgress, Jobs, gather

ANSWER_S = 60


def every_kind_of_job(place: str | Path) -> None:
    """Run jobs of every kind with a worker in this process; each ends as it should."""
    jobs, noted, was_seen = Jobs(place), threading.Event(), threading.Event()

    @jobs.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @jobs.task(name="total")
    def total(results: list[Any]) -> int:
        return sum(result for result in results if isinstance(result, int))

    @jobs.task(name="works")
    def works(ctx: JobContext) -> str:
        ctx.progress(0.5, "half")
        noted.set()
        assert was_seen.wait(ANSWER_S)
        ctx.tx.append("done", ctx.id)
        return "worked"

    @jobs.task(name="counts")
    def counts(n: int) -> Iterator[int]:
        yield from range(n)

    @jobs.task(name="waits")
    def waits(ctx: JobContext) -> None:
        noted.set()
        while not ctx.cancelled:
            was_seen.wait(0.01)
        raise InterruptedError

    @jobs.task(name="fails", max_attempts=2, backoff=0)
    def fails() -> None:
        raise ValueError("no")

    @jobs.task(name="coroutine")
    async def coroutine(ctx: JobContext, n: int) -> int:
        await ctx.emit(str(n))
        return n

    with jobs, jobs.worker(concurrency=4):
        assert [job.result(ANSWER_S) for job in add.put_many([(n, 1) for n in range(9)])][8] == 9

        working = works.put()
        assert noted.wait(ANSWER_S)
        assert jobs.get(working.id).progress() == JobProgress(0.5, "half")
        was_seen.set()
        assert working.result(ANSWER_S) == "worked"
        assert [record.text for record in jobs.opened().log("done")] == [working.id]

        assert [chunk.text for chunk in counts.put(3).stream()] == ["0", "1", "2"]
        emitting = coroutine.put(7)
        assert emitting.result(ANSWER_S) == 7
        assert [chunk.text for chunk in emitting.stream()] == ["7"]

        noted.clear()
        waiting = waits.put()
        assert noted.wait(ANSWER_S)
        assert waiting.cancel()
        with pytest.raises(JobCancelled):
            waiting.result(ANSWER_S)
        scheduled = add.put_in(1_000, 1, 1)
        assert scheduled.cancel()
        assert scheduled.state() == "cancelled"

        with pytest.raises(JobFailed, match="ValueError: no") as failure:
            fails.put().result(ANSWER_S)
        assert "in fails" in failure.value.data["trace"]

        assert add.s(1, 2).then(add.s(b=10)).put().result(ANSWER_S) == 13
        members = [add.s(n, 0) for n in range(9)]
        assert gather(members, then=total.s()).put().result(ANSWER_S) == 36
        collecting = gather([*members, fails.s()], on_failure="collect", then=total.s()).put()
        assert collecting.result(ANSWER_S) == 36

        jobs.schedules.put("sums", add, timedelta(hours=1), args=[1, 1])
        assert jobs.schedules.pause("sums").paused
        assert jobs.get(jobs.schedules.trigger("sums")).result(ANSWER_S) == 2
        assert jobs.schedules.delete("sums")
        with jobs.opened().transaction() as tx:
            later = tx.put(add, 3, 4)
        assert jobs.get(later.result).result(ANSWER_S) == 7
