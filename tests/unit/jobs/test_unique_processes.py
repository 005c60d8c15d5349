"""Processes that put the same unique job at once create one job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from millstream import Jobs

pytestmark = pytest.mark.embedded

PUT = """
import sys
from millstream import Jobs

jobs = Jobs(sys.argv[1])

@jobs.task(name="report", unique=True)
def report(customer: str) -> None: ...

jobs.opened()
print("ready", flush=True)
sys.stdin.readline()
handle = report.put("acme")
print(handle.id, handle.was_duplicate, flush=True)
jobs.close()
"""


def test_eight_processes_that_put_at_once_create_one_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    millstream.open(path).close()
    source = str(Path(millstream.__file__).parent.parent)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PUT, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        out, _ = process.communicate(timeout=60)
        answers.append(out.split())
    assert {id for id, _ in answers} == {"jobs.report-0"}
    assert sorted(duplicate for _, duplicate in answers) == ["False", *["True"] * 7]
    with Jobs(path) as jobs:
        assert jobs.opened().queue("jobs.report").info().available == 1
