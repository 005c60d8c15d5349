"""A worker process of the workloads of jobs: runs jobs until its input ends."""

from __future__ import annotations

import sys

from millstream.bench.measure import seconds
from millstream.threads.jobs import Jobs
from millstream.threads.task import Task


def define_tasks(jobs: Jobs) -> tuple[Task[[int], None, None], Task[[], float, float]]:
    """Return a task that does nothing, and a task that returns when it started."""

    @jobs.task(name="noop")
    def noop(number: int) -> None: ...

    @jobs.task(name="started")
    def started() -> float:
        return seconds()

    return noop, started


def main(path: str) -> None:
    """Run jobs until the input ends."""
    jobs = Jobs(path)
    define_tasks(jobs)
    with jobs.worker(concurrency=8):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
    jobs.close()


if __name__ == "__main__":
    main(sys.argv[1])
