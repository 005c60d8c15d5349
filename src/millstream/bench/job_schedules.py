"""The workload of schedules: 10,000 that are not due, and 1,000 that are due at once."""

from __future__ import annotations

import resource
import threading
from functools import partial
from typing import Protocol

from millstream.bench.measure import ReportRow, StepMeter, seconds
from millstream.jobs import schedule as s
from millstream.jobs.schedule import ScheduledJob, define
from millstream.threads.database import Millstream
from millstream.threads.jobs import Jobs
from millstream.threads.worker_runtime import SideCall

IDLE = 10_000
DUE = 1_000
HOUR_MS = 3_600_000
CORE_PERCENT_MAX = 2.0
PLACED_S_MAX = 1.0
SETTLE_S = 2.0
"""The store folds earlier commits during this pause, so that the idle measurement has no fold in it."""


class BenchOfJobs(Protocol):
    """The run of a suite with jobs."""

    jobs: Jobs
    seconds: float


def jobs_schedules(bench: BenchOfJobs) -> ReportRow:
    """Due schedules until their jobs are placed, 1,000 at once, beside 10,000 that are not due."""
    ms = bench.jobs.opened()
    if not ms.queue("jobs").exists():
        ms.create_queue("jobs")
    bench.jobs.schedules.fire()  # creates the queue
    now_ms = ms.session.clock.wall_ms()
    _store(ms, "idle", IDLE, now_ms, every_s=30 * 86_400)
    percent = _idle_percent(bench)
    meter = StepMeter()
    for number in range(3):
        _store(ms, f"due-{number}", DUE, now_ms - HOUR_MS // 2 - HOUR_MS, every_s=3_600)
        began_s, placed = seconds(), 0
        while placed < DUE:
            placed += bench.jobs.schedules.fire()
        meter.step_s.append(seconds() - began_s)
        meter.elapsed_s += meter.step_s[-1]
        meter.messages += placed
        ms.queue("jobs").purge()
    row = meter.row(batch=DUE, details={"idle_core_percent": _rounded(percent)})
    row.require("1,000 placed ≤ 1 s", max(meter.step_s) <= PLACED_S_MAX)
    return row.require("10,000 idle ≤ 2 % of a core", percent <= CORE_PERCENT_MAX)


def _rounded(percent: float) -> float:
    """Return a percentage with two digits."""
    return float(f"{percent:.2f}")


def _store(ms: Millstream, prefix: str, count: int, since_ms: int, *, every_s: float) -> None:
    """Store schedules that all have the same next tick."""
    job = ScheduledJob("noop")
    wanted = [define(f"{prefix}-{n}", job, every_s, now_ms=since_ms) for n in range(count)]
    values = [each.encoded() for each in wanted]
    names = [{s.NAME_HEADER: each.name} for each in wanted]
    ms.queue(s.QUEUE).put_many(values, headers=names, at=wanted[0].due_ms)


def _idle_percent(bench: BenchOfJobs) -> float:
    """Return the part of a core that the serving of schedules uses while nothing is due."""
    over = threading.Event()
    serving = SideCall(partial(bench.jobs.schedules.serve, over.is_set), name="schedules")
    over.wait(min(SETTLE_S, bench.seconds))
    began_s, used_s = seconds(), _used_s()
    over.wait(max(0.2, bench.seconds))
    percent = 100 * (_used_s() - used_s) / (seconds() - began_s)
    over.set()
    serving.close()
    return percent


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
