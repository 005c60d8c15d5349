"""Compaction beside publishes: how much longer a publish takes while free pages go back to the disk."""

from __future__ import annotations

import subprocess
import sys

import msgspec

import millstream
from millstream.bench.measure import PAYLOAD_BYTES, ReportRow, StepMeter, payloads
from millstream.bench.ops_bench import OpsBench
from millstream.testing import Probe

DELETED_BYTES = 5_000
"""The size of a deleted record: 200,000 records are a gigabyte."""

BATCH = 200
SLICE_S = 0.1
TIMES_MAX = 3


def compact(bench: OpsBench) -> ReportRow:
    """Publish alone, then beside `millstream compact` in another process; compare the slow publishes."""
    path = bench.directory / "compacted.db"
    values = payloads(BATCH, DELETED_BYTES)
    (value,) = payloads(1)
    with millstream.open(path) as ms:
        log = ms.log("deleted")
        for _ in range(max(1, bench.records // BATCH)):
            log.append_many(values)
        log.truncate(before=log.end_offset())
        probe = Probe(ms)
        probe.upkeep()
        ms.fold()
        probe.upkeep()
        published = ms.log("published")

        def publish() -> int:
            published.append(value)
            return 1

        alone, beside = StepMeter(), StepMeter()
        alone.run(publish, bench.seconds)
        command = [sys.executable, "-m", "millstream", "compact", str(path), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            while child.poll() is None:
                beside.run(publish, SLICE_S)
            assert child.stdout is not None
            report = msgspec.json.decode(child.stdout.read())
        if child.returncode:
            raise RuntimeError(f"millstream compact ended with {child.returncode}")
    slow_ms, normal_ms = beside.percentile_ms(0.99), alone.percentile_ms(0.99)
    row = beside.row(beside=alone)
    row.payload_bytes = PAYLOAD_BYTES
    row.details = {
        "normal_p99_ms": normal_ms,
        "returned_mb": round(report["returned_bytes"] / 1e6, 1),
    }
    return row.require(f"p99 < {TIMES_MAX} x normal", slow_ms < TIMES_MAX * normal_ms)
