"""The workload of limits per key: the same jobs with a limit that is never reached, and without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.bench.measure import ReportRow, Step
from millstream.bench.turns import Side, alternate
from millstream.threads.jobs import Jobs
from millstream.threads.task import Task

BATCH = 1_000
BATCHES = 5
CONCURRENCY = 8
CUSTOMERS = 100
LAST = 64
"""Jobs at the end of a step whose ends are awaited: jobs begin in order, a few at a time."""
ANSWER_S = 30.0
UNREACHED = 1_000_000


def run_limited(directory: Path, total_s: float) -> ReportRow:
    """Run jobs with and without limits in turns, each from put to acknowledged."""
    jobs = Jobs(directory / "limits.db")

    @jobs.task(name="free", queue="free")
    def free(number: int, customer: str) -> None: ...

    @jobs.task(name="limited", limits={"key": "customer", "running": UNREACHED})
    def limited(number: int, customer: str) -> None: ...

    with jobs, jobs.worker(concurrency=CONCURRENCY):
        beside, meter = alternate([Side(_step(free)), Side(_step(limited))], total_s)
    row = meter.row(beside=beside, batch=BATCH, details={"keys": CUSTOMERS})
    return row.require_ratio(0.9)


def _step(task: Task[..., Any, Any]) -> Step:
    calls = [(number, f"customer {number % CUSTOMERS}") for number in range(BATCH)]

    def step() -> int:
        handles = [job for _ in range(BATCHES) for job in task.put_many(calls)]
        for job in handles[-LAST:]:
            job.result(timeout=ANSWER_S)
        return len(handles)

    return step
