"""Eight processes run the members of groups at the same time; each group ends once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Jobs, Task, gather

pytestmark = pytest.mark.embedded


def define(jobs: Jobs) -> dict[str, Task[..., Any, Any]]:
    @jobs.task(name="square", max_attempts=1)
    def square(n: int) -> int:
        if n == 13:
            raise ValueError("thirteen")
        return n * n

    @jobs.task(name="total")
    def total(results: list[Any]) -> int:
        return sum(result for result in results if isinstance(result, int))

    return {"square": square, "total": total}


def test_eight_processes_that_end_members_at_once_put_one_callback(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Jobs(path) as jobs:
        tasks = define(jobs)
        square, total = tasks["square"], tasks["total"]
        members = [square.s(n).then(square.s()) if n % 10 == 0 else square.s(n) for n in range(200)]
        collecting = gather(members, on_failure="collect", then=total.s()).put()
        failing = gather(members, then=total.s()).put()
        places = [str(Path(millstream.__file__).parents[1]), str(Path(__file__).parents[3])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        command = [sys.executable, __file__, str(path)]
        processes = [subprocess.Popen(command, env=environment) for _ in range(8)]
        assert [process.wait(timeout=120) for process in processes] == [0] * 8
        expected = sum(n**4 if n % 10 == 0 else n * n for n in range(200) if n != 13)
        assert collecting.result(timeout=0) == expected
        assert (collecting.done(), failing.done()) == (201, 200)
        callbacks = jobs.opened().queue("jobs").peek(1_000, state="done")
        assert [m.headers["task"] for m in callbacks].count("total") == 1


if __name__ == "__main__":
    with Jobs(sys.argv[1]) as jobs_of_process:
        define(jobs_of_process)
        jobs_of_process.worker(concurrency=4).run(drain=True)
