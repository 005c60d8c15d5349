"""Workers of jobs are killed while they work, over and over, in processes of their own.

- Every job is done in the end, and its chain and its group complete once.
- Each tick of a schedule puts exactly one job, however many workers died while they fired it.
- No more jobs of a key run than its limit allows, counting the jobs of dead workers.
- The doctor finds the store healthy.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

import millstream
from millstream import JobFailed, Jobs, gather
from millstream.doctor import examine
from millstream.jobs.key_limits import KEY_HEADER
from millstream.record import wall_ms_of
from tests.crash import job_program

pytestmark = [pytest.mark.crash, pytest.mark.slow]

KILLS = int(os.environ.get("MILLSTREAM_JOB_KILLS", "6"))
WORKERS = 2
ANSWER_S = 120


def worker(path: Path) -> subprocess.Popen[str]:
    source = Path(millstream.__file__).parents[1]
    places = os.pathsep.join([str(source), str(Path(__file__).parents[2])])
    return subprocess.Popen(
        [sys.executable, job_program.__file__, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": places},
    )


def test_workers_that_are_killed_lose_no_job_and_fire_each_tick_once(tmp_path: Path) -> None:
    chance = random.Random(os.environ["MILLSTREAM_SEED"])
    path = tmp_path / "jobs.db"
    with Jobs(path) as jobs:
        tasks = job_program.define(jobs)
        square, total, limited = tasks["square"], tasks["total"], tasks["limited"]
        singles = square.put_many([(n,) for n in range(200)])
        chains = [square.s(n).then(square.s()).put() for n in range(20)]
        groups = [gather([square.s(n) for n in range(10)], then=total.s()).put() for _ in range(3)]
        members = [square.s(n).then(square.s()) for n in range(50)]
        members += [tasks["refuses"].s(n) for n in range(50)]
        collecting = gather(members, on_failure="collect", then=tasks["count"].s()).put()
        failing = gather(members, then=total.s()).put()
        keyed = limited.put_many([(f"k{n % 5}", n) for n in range(100)])

        running = [worker(path) for _ in range(WORKERS)]
        try:
            for _ in range(KILLS):
                victim = running.pop(0)
                assert victim.stdout is not None
                for _ in range(chance.randint(1, 40)):
                    assert victim.stdout.readline()
                victim.kill()
                victim.stdout.close()
                victim.wait()
                queue = jobs.opened().queue("jobs.limited")
                flying = Counter(
                    m.headers.get(KEY_HEADER) for m in queue.peek(100, state="in_flight")
                )
                assert all(count <= 2 for count in flying.values()), flying
                running.append(worker(path))
        finally:
            for process in running:
                process.kill()
                assert process.stdout is not None
                process.stdout.close()
                process.wait()

        with jobs.worker(concurrency=8, lease=job_program.LEASE_S):
            assert [job.result(timeout=ANSWER_S) for job in singles] == [n * n for n in range(200)]
            assert [c.result(timeout=ANSWER_S) for c in chains] == [n**4 for n in range(20)]
            assert {group.result(timeout=ANSWER_S) for group in groups} == {285}
            assert {group.done() for group in groups} == {11}
            assert collecting.result(timeout=ANSWER_S) == [100, 50]
            assert collecting.done() == 101
            with pytest.raises(JobFailed, match="Reject: never"):
                failing.result(timeout=ANSWER_S)
            assert [job.result(timeout=ANSWER_S) for job in keyed] == list(range(100))
            # A worker that was killed with the claims of due ticks keeps these claims for 10 s.
            while len(ticks_of(jobs)) < job_program.SCHEDULES:
                threading.Event().wait(0.05)
        check_ticks(jobs)
    report = examine(path)
    assert report.healthy, report.problems


def check_ticks(jobs: Jobs) -> None:
    """Each tick from the first to the last put one job."""
    ticks = ticks_of(jobs)
    assert len(ticks) == job_program.SCHEDULES
    for schedule, times in ticks.items():
        times.sort()
        assert times == list(range(times[0], times[-1] + 1_000, 1_000)), schedule


def ticks_of(jobs: Jobs) -> dict[str, list[int]]:
    """The ticks of the jobs that each schedule has put."""
    ticks: dict[str, list[int]] = {}
    for state in ("available", "in_flight", "delayed", "done"):
        after = -1
        while page := jobs.opened().queue("jobs").peek(1_000, state=state, after=after):
            after = page[-1].claim_id
            for message in page:
                if (schedule := message.headers.get("job-schedule")) is not None:
                    tick = datetime.fromisoformat(str(message.headers["job-tick"]))
                    ticks.setdefault(str(schedule), []).append(wall_ms_of(tick))
    return ticks
