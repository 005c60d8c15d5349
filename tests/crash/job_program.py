"""A program with tasks and schedules; as a script, a worker of its jobs that is killed sooner or later.

Started with the path of the store. The worker prints a line before each job, so that a test kills it in
the middle of work.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from millstream import Jobs, Reject, Task

LEASE_S = 1.0
SCHEDULES = 5


def define(jobs: Jobs) -> dict[str, Task[..., Any, Any]]:
    """Return the tasks, by name; declare the schedules."""

    @jobs.task(name="square", max_attempts=1_000, backoff=0)
    def square(n: int) -> int:
        print("square", n, flush=True)
        return n * n

    @jobs.task(name="total", max_attempts=1_000, backoff=0)
    def total(numbers: list[int]) -> int:
        print("total", len(numbers), flush=True)
        return sum(numbers)

    @jobs.task(name="refuses", max_attempts=1_000, backoff=0)
    def refuses(n: int) -> int:
        print("refuses", n, flush=True)
        raise Reject("never")

    @jobs.task(name="count", max_attempts=1_000, backoff=0)
    def count(results: list[Any]) -> list[int]:
        print("count", len(results), flush=True)
        refused = sum(isinstance(each, dict) and each["kind"] == "Reject" for each in results)
        return [len(results), refused]

    @jobs.task(name="limited", max_attempts=1_000, backoff=0, limits={"key": "key", "running": 2})
    def limited(key: str, n: int) -> int:
        print("limited", key, flush=True)
        return n

    @jobs.task(name="tick", max_attempts=1_000, backoff=0)
    def tick(number: int) -> None:
        print("tick", number, flush=True)

    for number in range(SCHEDULES):
        jobs.every(timedelta(seconds=1), name=f"s{number}", missed="all", args=[number])(tick)
    tasks: list[Task[..., Any, Any]] = [square, total, limited, refuses, count]
    return {task.task_name: task for task in tasks}


def main(path: str) -> None:
    """Run jobs until killed."""
    jobs = Jobs(path)
    define(jobs)
    jobs.worker(concurrency=3, lease=LEASE_S).run()


if __name__ == "__main__":
    main(sys.argv[1])
