"""The workloads of jobs: no-op jobs, one worker process, synced; huey on SQLite takes turns with ours.

huey runs its tasks in this process without the pauses of its consumer, so the figure is the best of
huey. If huey is not installed, the row has no peer.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from millstream.bench.job_schedules import jobs_schedules
from millstream.bench.jobs_program import define_tasks
from millstream.bench.measure import ReportRow, Step, StepMeter, seconds
from millstream.bench.suite import Suite
from millstream.bench.turns import Side, alternate
from millstream.threads.jobs import Jobs
from millstream.threads.task import Task

BATCH = 1_000
CONCURRENCY = 8
PEER_BATCH = 100
BATCHES = 5
LAST = 64
"""Jobs at the end of a step whose ends are awaited: jobs begin in order, a few at a time."""
ANSWER_S = 30.0
CUSTOMERS = 100
UNREACHED = 1_000_000
"""A limit per key that no customer reaches."""


class JobsBench:
    """One run: a store of jobs with a task that does nothing."""

    def __init__(self, directory: Path, *, seconds_each: float) -> None:
        self.directory = directory
        self.seconds = seconds_each
        self.jobs = Jobs(directory / "jobs.db")
        self.noop, self.started = define_tasks(self.jobs)
        self.calls = [(number,) for number in range(BATCH)]
        self.noop.put_many(self.calls[:1])
        self.drain()

    def drain(self) -> None:
        """Run the waiting jobs."""
        self.jobs.worker(concurrency=CONCURRENCY).run(drain=True)

    def close(self) -> None:
        """Close the store."""
        self.jobs.close()


def jobs_put(bench: JobsBench) -> ReportRow:
    """Jobs put by `put_many`, 1,000 at a time."""
    meter = StepMeter()

    def put() -> int:
        return len(bench.noop.put_many(bench.calls))

    meter.run(put, bench.seconds)
    bench.jobs.opened().queue("jobs").purge()
    return meter.row(batch=BATCH).require_rate(120_000)


def jobs_run(bench: JobsBench) -> ReportRow:
    """Jobs from put to acknowledged, in one worker process; beside it, huey on SQLite."""
    with bench.jobs.worker(concurrency=CONCURRENCY):
        return _beside_huey(bench, _step(bench.noop, bench.calls))


def _beside_huey(bench: JobsBench, ours: Step) -> ReportRow:
    peer = huey_step(bench.directory / "huey.db")
    if peer is None:
        meter = StepMeter()
        meter.run(ours, bench.seconds)
        return meter.row(batch=BATCH, details={"peer": "not installed"}).require_rate(15_000)
    beside, meter = alternate([Side(peer), Side(ours)], bench.seconds)
    row = meter.row(beside=beside, batch=BATCH, details={"peer": "huey"})
    return row.require_rate(15_000).require_ratio(5)


def jobs_latency(bench: JobsBench) -> ReportRow:
    """The time from the call of `put` to the start of the job: here, and in another process."""
    with bench.jobs.worker(concurrency=CONCURRENCY):
        here = _latencies(bench, bench.seconds / 2)
    program = [
        sys.executable,
        "-m",
        "millstream.bench.jobs_program",
        str(bench.directory / "jobs.db"),
    ]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        across = _latencies(bench, bench.seconds / 2)
        other.communicate()
    row = here.row(details={"across_p50_ms": across.percentile_ms(0.5)})
    row.require("p50 ≤ 2 ms in one process", row.p50_ms <= 2)
    return row.require("p50 ≤ 10 ms across processes", across.percentile_ms(0.5) <= 10)


def _latencies(bench: JobsBench, total_s: float) -> StepMeter:
    meter = StepMeter()
    began = seconds()
    while not meter.messages or seconds() - began < total_s:
        put_s = seconds()
        started_s = bench.started.put().result(timeout=ANSWER_S)
        meter.step_s.append(started_s - put_s)
        meter.messages += 1
    meter.elapsed_s = seconds() - began
    return meter


def jobs_limited(bench: JobsBench) -> ReportRow:
    """Jobs with a limit per key that is never reached; beside it, the same jobs without a limit."""
    jobs = Jobs(bench.directory / "limits.db")

    @jobs.task(name="free", queue="free")
    def free(number: int, customer: str) -> None: ...

    @jobs.task(name="limited", limits={"key": "customer", "running": UNREACHED})
    def limited(number: int, customer: str) -> None: ...

    with jobs, jobs.worker(concurrency=CONCURRENCY):
        sides = [Side(_step(task, _customers())) for task in (free, limited)]
        beside, meter = alternate(sides, bench.seconds)
    row = meter.row(beside=beside, batch=BATCH, details={"keys": CUSTOMERS})
    return row.require_ratio(0.9)


def _customers() -> list[tuple[int, str]]:
    return [(number, f"customer {number % CUSTOMERS}") for number in range(BATCH)]


def _step(task: Task[..., Any, Any], calls: list[Any]) -> Step:
    """Return a step that puts batches of calls, and waits for the end of the last jobs."""

    def step() -> int:
        handles = [job for _ in range(BATCHES) for job in task.put_many(calls)]
        for job in handles[-LAST:]:
            job.result(timeout=ANSWER_S)
        return len(handles)

    return step


def huey_step(path: Path) -> Step | None:
    """Return a step that enqueues and runs tasks of huey; None if huey is not installed."""
    if find_spec("huey") is None:
        return None
    from huey import SqliteHuey

    huey = SqliteHuey(filename=str(path), fsync=True, results=False)

    def nothing(number: int) -> None: ...

    noop = huey.task(name="noop")(nothing)

    def step() -> int:
        for number in range(PEER_BATCH):
            noop(number)
        for _ in range(PEER_BATCH):
            huey.execute(huey.dequeue())
        return PEER_BATCH

    return step


SUITE = Suite(JobsBench, jobs_put, jobs_run, jobs_latency, jobs_limited, jobs_schedules)
