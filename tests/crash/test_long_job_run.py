"""Jobs of every kind run for a long time: memory and open files stay flat.

The run takes `MILLSTREAM_JOBS_S` seconds: 3 by default, and 180 in `make faults`. The first third is
for warming up. Results expire while the run goes on, so that chores delete outputs and groups.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import millstream

pytestmark = [pytest.mark.faults, pytest.mark.slow]

RUN_S = float(os.environ.get("MILLSTREAM_JOBS_S", "3"))
GROWTH_BYTES_MAX = 25_000_000
FILES_MAX = 10
"""Files that may be opened between two looks, such as a connection that a thread opens at first use."""

PROGRAM = """
import json, os, sys, time
from collections.abc import Iterator
from millstream import Jobs, gather
from millstream.jobs.processes.child import resident_bytes

jobs = Jobs(sys.argv[1], keep_results=2)

@jobs.task(name="plain")
def plain(n: int) -> int:
    return n

@jobs.task(name="coroutine")
async def coroutine(n: int) -> int:
    return n

@jobs.task(name="fails", max_attempts=2, backoff=0)
def fails(n: int) -> None:
    raise ValueError(n)

@jobs.task(name="streams")
def streams(n: int) -> Iterator[int]:
    yield from range(n)

@jobs.task(name="limited", limits={"key": "key", "running": 2})
def limited(key: str) -> None: ...

@jobs.task(name="unique", unique=True)
def unique(n: int) -> None: ...

@jobs.task(name="total")
def total(numbers: list[int]) -> int:
    return sum(numbers)

def work() -> int:
    handles = plain.put_many([(n,) for n in range(200)]) + coroutine.put_many([(n,) for n in range(20)])
    handles += [streams.put(5), unique.put(1), unique.put(1)]
    handles += limited.put_many([(f"k{n % 3}",) for n in range(10)])
    failed = fails.put(1)
    cancelled = plain.put_in(3600, 1)
    cancelled.cancel()
    group = gather([plain.s(n) for n in range(5)], then=total.s()).put()
    chain = plain.s(1).then(plain.s()).put()
    assert group.result(timeout=60) == 10
    assert chain.result(timeout=60) == 1
    for job in handles:
        try:
            job.result(timeout=60)
        except LookupError:
            pass
        except Exception as error:  # the result may have expired on a slow machine
            assert type(error).__name__ == "NotFound", error
    return len(handles) + 9

def facts() -> dict[str, int]:
    return {"memory": resident_bytes(), "files": len(os.listdir("/proc/self/fd"))}

run_s, began_s, count, warm = float(sys.argv[2]), time.monotonic(), 0, None
with jobs.worker(concurrency=4):
    while warm is None or time.monotonic() - began_s < run_s:
        count += work()
        if warm is None and time.monotonic() - began_s >= run_s / 3:
            warm = facts()
    end = facts()
jobs.close()
print(json.dumps({"count": count, "warm": warm, "end": end}))
"""


class Facts(msgspec.Struct):
    memory: int
    files: int


class Report(msgspec.Struct):
    count: int
    warm: Facts
    end: Facts


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_memory_and_open_files_stay_flat(tmp_path: Path) -> None:
    source = str(Path(millstream.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "jobs.db"), str(RUN_S)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        timeout=RUN_S + 600,
    )
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout, type=Report)
    print(report)  # shown by pytest if the test fails
    assert report.count > 0
    assert report.end.files - report.warm.files <= FILES_MAX
    assert report.end.memory - report.warm.memory <= GROWTH_BYTES_MAX
