"""The workloads of an operator: backup and restore of a store of 1 GB, beside publishers.

Each workload runs in a process of its own where an operator would start a command, so that the
publishers of this process are disturbed as they would be.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import millstream
from millstream.backup.restore import restore as restore_place
from millstream.backup.run import back_up
from millstream.bench.measure import ReportRow, StepMeter, payloads, seconds
from millstream.bench.ops_bench import OpsBench
from millstream.threads.database import Millstream

BATCH = 200
VALUE_BYTES = 5_000
INCREMENT_COMMITS = 1_000
RATE_MIN = 100_000_000
PUBLISHED_S = 0.02
"""Time between two looks whether the process of the backup has ended."""


@contextmanager
def large_store(bench: OpsBench) -> Iterator[tuple[Millstream, Path]]:
    """Open the store with `records` records of 5,000 bytes, which the first workload makes."""
    path = bench.directory / "large.db"
    is_new = not path.exists()
    with millstream.open(path) as ms:
        if is_new:
            log = ms.log("large")
            for first in range(0, bench.records, BATCH):
                count = min(BATCH, bench.records - first)
                log.append_many(payloads(count, VALUE_BYTES))
            ms.fold()
        yield ms, path


def backup_full(bench: OpsBench) -> ReportRow:
    """A first backup into an empty folder by a process of its own, beside a publisher."""
    alone, beside = StepMeter(), StepMeter()
    value = payloads(1)[0]
    with large_store(bench) as (ms, path):
        log = ms.log("beside")

        def publish() -> int:
            log.append(value)
            return 1

        alone.run(publish, bench.seconds)
        place = bench.directory / "full"
        program = [sys.executable, "-m", "millstream.cli", "backup"]
        began = seconds()
        with subprocess.Popen(
            [*program, str(path), str(place), "--json"], stdout=subprocess.PIPE
        ) as process:
            while process.poll() is None:
                beside.run(publish, PUBLISHED_S)
            took_s = seconds() - began
            assert process.stdout is not None
            answer = process.stdout.read()
    if process.returncode:
        raise RuntimeError("the backup failed")
    size: int = msgspec.json.decode(answer)["bytes"]
    row = ReportRow(payload_bytes=VALUE_BYTES, per_second=round(size / took_s))
    row.beside_per_second = round(beside.per_second())
    row.ratio = round(beside.per_second() / alone.per_second(), 3)
    row.details = {"megabytes": size / 1e6, "alone_per_second": alone.per_second()}
    row.require("≥ 100 MB/s", row.per_second >= RATE_MIN)
    return row.require_ratio(0.7)


def backup_increment(bench: OpsBench) -> ReportRow:
    """A backup of 1,000 new commits into a folder that has the earlier ones."""
    place = bench.directory / "increment"
    meter = StepMeter()
    with large_store(bench) as (ms, path):
        log = ms.log("new")
        back_up(path, place)
        while not meter.messages or meter.elapsed_s < bench.seconds:
            for value in payloads(INCREMENT_COMMITS):
                log.append(value)
            began = seconds()
            report = back_up(path, place)
            meter.step_s.append(seconds() - began)
            meter.elapsed_s += meter.step_s[-1]
            meter.messages += INCREMENT_COMMITS
    row = meter.row(
        details={
            "megabytes": report.point.file_bytes / 1e6,
            "stored_megabytes": report.stored_bytes / 1e6,
        }
    )
    return row.require("p50 ≤ 1 s", row.p50_ms <= 1_000)


def restore(bench: OpsBench) -> ReportRow:
    """A restore from a folder into a new file, checked."""
    place = bench.directory / "restored"
    with large_store(bench) as (_, path):
        back_up(path, place)
    meter = StepMeter()
    while not meter.messages or meter.elapsed_s < bench.seconds:
        target = bench.directory / f"restored-{len(meter.step_s)}.db"
        began = seconds()
        report = restore_place(place, target)
        meter.step_s.append(seconds() - began)
        meter.elapsed_s += meter.step_s[-1]
        meter.messages += report.point.file_bytes
        target.unlink()
    row = meter.row(details={"megabytes": report.point.file_bytes / 1e6})
    return row.require("≥ 100 MB/s", row.per_second >= RATE_MIN)
