"""The replicas' workloads: two stores in files, from nothing to the same, and then nothing new.

Everything that is taken over is checked against the running hash and durable when it counts.
"""

from __future__ import annotations

from pathlib import Path

import millstream
from millstream.bench.measure import ReportRow, StepMeter, payloads, seconds
from millstream.bench.suite import Suite
from millstream.threads.database import Millstream

BATCH = 1_000
LOGS = 100
"""Small logs of a record each, beside the large log: the cost of a first look at many logs."""


class ReplicaBench:
    """One run: a store with a large log, and what is synced with it."""

    def __init__(self, directory: Path, *, seconds_each: float, records: int) -> None:
        self.directory = directory
        self.seconds = seconds_each
        self.records = records
        self._made = 0
        self.source: Millstream = millstream.open(directory / "source.db")
        values = payloads(BATCH)
        log = self.source.log("large")
        for first in range(0, records, BATCH):
            log.append_many(values[: min(BATCH, records - first)])

    def target(self) -> Millstream:
        """Another empty store."""
        self._made += 1
        return millstream.open(self.directory / f"target-{self._made}.db")

    def close(self) -> None:
        """Close the source."""
        self.source.close()


def sync_full(bench: ReplicaBench) -> ReportRow:
    """A whole log into an empty store."""
    meter = StepMeter()
    carried = 0
    while not meter.messages or meter.elapsed_s < bench.seconds:
        with bench.target() as target:
            began = seconds()
            outcome = target.sync(bench.source, direction="pull", logs="large")
            took = seconds() - began
            if target.log("large").end_offset() != bench.records:
                raise RuntimeError("a sync ended early")
        meter.messages += outcome.pulled
        meter.elapsed_s += took
        meter.step_s.append(took)
        carried = outcome.bytes
    details = {"records": bench.records, "bytes_per_record": round(carried / bench.records, 1)}
    return meter.row(batch=BATCH, details=details).require_rate(500_000)


def sync_nothing(bench: ReplicaBench) -> ReportRow:
    """The same two stores once more, with nothing new; then with many small logs beside."""
    with bench.target() as target:
        target.sync(bench.source, direction="pull", logs="large")
        meter, bytes_per_log = _idle(bench, target, bench.seconds / 2)
        for number in range(LOGS):
            bench.source.log(f"small/{number}").append(b"x")
        target.sync(bench.source)
        many, many_bytes = _idle(bench, target, bench.seconds / 2)
    row = meter.row(
        details={
            "bytes_per_log": round(bytes_per_log),
            "logs": LOGS + 1,
            "logs_p50_ms": many.percentile_ms(0.5),
            "logs_bytes_per_log": round(many_bytes),
        }
    )
    row.require("p99 < 50 ms", row.p99_ms < 50)
    return row.require("< 1,000 bytes per log", bytes_per_log < 1_000)


def _idle(bench: ReplicaBench, target: Millstream, total_s: float) -> tuple[StepMeter, float]:
    """Sync again and again; how long it takes, and how much is said per log."""
    meter = StepMeter()
    said = 0.0

    def step() -> int:
        nonlocal said
        outcome = target.sync(bench.source)
        if outcome.pulled or outcome.pushed:
            raise RuntimeError("there was something new")
        said = outcome.bytes / outcome.looked_at
        return outcome.looked_at

    meter.run(step, total_s)
    return meter, said


SUITE = Suite(ReplicaBench, sync_full, sync_nothing)
