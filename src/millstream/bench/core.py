"""The core's workloads: appends one by one, in batches, from many threads; reads; opening.

Each is measured beside a raw file that is synced as often, in the same directory and run.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from millstream.aio import database as aio_database
from millstream.bench import application, opening
from millstream.bench.disk import RawFile, open_slow_engine
from millstream.bench.measure import PAYLOAD_BYTES, ReportRow, Step, StepMeter, payloads, seconds
from millstream.bench.producers import producer_coroutine, producer_one
from millstream.bench.singles import put_both
from millstream.bench.suite import Suite
from millstream.bench.turns import Crowd, Side, alternate
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.header import HeaderMapping
from millstream.store.store import Store
from millstream.threads.database import Millstream
from millstream.threads.log import Log

BATCH = 1_000
THREADS = 32
CROWD_S = 0.1
READ_RECORDS = 1_000_000
SINGLES_READ = 100_000
RAW_APPENDS_MIN = 9_000
"""Below this many raw synced appends per second the machine was busy, and a run proves nothing."""


class CoreBench:
    """One run: a directory, a time per workload, and perhaps a slow disk."""

    def __init__(self, directory: Path, *, seconds_each: float, sync_delay_ms: float) -> None:
        self.directory = directory
        self.seconds = seconds_each
        self.delay_s = sync_delay_ms / 1000
        self.raw = RawFile(directory, sync_delay_s=self.delay_s)
        engine = open_slow_engine(directory / "bench.db", sync_delay_s=self.delay_s)
        self.raw_store = open_store(engine)
        self.store = Millstream(EmbeddedSession(self.raw_store))

    def close(self) -> None:
        """Let go of files and store."""
        self.store.close()
        self.raw.close()

    def turns(self, *steps: Step) -> list[StepMeter]:
        """Let steps take turns."""
        return alternate([Side(step) for step in steps], self.seconds)

    def row(self, meter: StepMeter, limit: StepMeter, **figures: Any) -> ReportRow:
        """A report line of a workload that was measured beside its limit."""
        return meter.row(beside=limit, sync_delay_ms=self.delay_s * 1000, **figures)

    def raw_step(self, *values: bytes) -> Step:
        """The limit: the same bytes to a raw file, synced once."""
        data = b"".join(values)

        def step() -> int:
            self.raw.append(data)
            return len(values)

        return step


def publish_one(bench: CoreBench) -> ReportRow:
    """Let a producer append a message per commit."""
    value = os.urandom(PAYLOAD_BYTES)
    limit, meter = bench.turns(bench.raw_step(value), _append(bench.store.log("one"), value))
    row = bench.row(meter, limit)
    if not bench.delay_s and limit.per_second() < RAW_APPENDS_MIN:
        row.void = f"the raw file reached only {limit.per_second():,.0f} synced appends/s"
    return row.require_ratio(0.45)


def publish_batch(bench: CoreBench) -> ReportRow:
    """Batches without keys or headers."""
    log, values = bench.store.log("batch"), payloads(BATCH)
    limit, meter = bench.turns(bench.raw_step(*values), lambda: len(log.append_many(values)))
    return bench.row(meter, limit, batch=BATCH).require_ratio(0.4).require_rate(900_000)


def publish_batch_headers(bench: CoreBench) -> ReportRow:
    """Batches with a key and three headers each."""
    log, values = bench.store.log("headers"), payloads(BATCH)
    keys = [f"customer-{i:05d}".encode() for i in range(BATCH)]
    headers: list[HeaderMapping | None] = [
        {"region": "eu" if i % 3 else "us", "amount": i * 7, "express": i % 2 == 0}
        for i in range(BATCH)
    ]

    def step() -> int:
        return len(log.append_many(values, keys=keys, headers=headers))

    limit, meter = bench.turns(bench.raw_step(*values), step)
    return bench.row(meter, limit, batch=BATCH).require_rate(450_000)


def publish_threads(bench: CoreBench) -> ReportRow:
    """Many threads, one message per call, beside one thread alone."""
    log, value = bench.store.log("threads"), os.urandom(PAYLOAD_BYTES)
    append = _append(log, value)
    crowd = Crowd([append] * THREADS)
    raw, alone, together = bench.turns(bench.raw_step(value), append, lambda: crowd.step(CROWD_S))
    row = crowd.finish(bench.row(together, raw), alone, minimum=15 if bench.delay_s else 3)
    return row if bench.delay_s else row.require_rate(30_000)


def publish_coroutines(bench: CoreBench) -> ReportRow:
    """Many coroutines, one message per call, beside one producer alone."""
    value = os.urandom(PAYLOAD_BYTES)
    append = _append(bench.store.log("coroutines"), value)
    crowd = CoroutineCrowd(bench.raw_store, "coroutines", value, count=THREADS)
    raw, alone, together = bench.turns(bench.raw_step(value), append, lambda: crowd.step(CROWD_S))
    row = crowd.finish(bench.row(together, raw), alone)
    if bench.delay_s:
        times = row.details["times_one_producer"]
        return row.require("≥ 15 times one producer", times >= 15)
    return row.require_rate(50_000).require("p99 ≤ 3 ms", row.p99_ms <= 3)


def read_blocks(bench: CoreBench) -> ReportRow:
    """A million records in order, as blocks."""
    log = _filled(bench)
    return _read(bench, lambda: sum(len(block) for block in log.read_blocks()), 5_000_000)


def read_records(bench: CoreBench) -> ReportRow:
    """A million records in order, as objects."""
    log = _filled(bench)
    return _read(bench, lambda: sum(1 for _ in log.read()), 400_000)


def read_singles(bench: CoreBench) -> ReportRow:
    """Read folded single appends as objects, beside the same records in blocks."""
    count = min(SINGLES_READ, round(SINGLES_READ * bench.seconds))
    singles, blocks = put_both(bench.store, "singles", "blocks", count)
    limit, meter = bench.turns(
        lambda: sum(1 for _ in blocks.read()), lambda: sum(1 for _ in singles.read())
    )
    return bench.row(meter, limit).require_rate(1_000_000)


def _read(bench: CoreBench, read: Step, per_second: int) -> ReportRow:
    meter = StepMeter()
    meter.run(read, bench.seconds)
    return meter.row(batch=BATCH).require_rate(per_second)


def _filled(bench: CoreBench) -> Log:
    log, values = bench.store.log("read"), payloads(BATCH)
    while log.end_offset() < READ_RECORDS:
        log.append_many(values)
    return log


def _append(log: Log, value: bytes) -> Step:
    def step() -> int:
        log.append(value)
        return 1

    return step


def open_large(bench: CoreBench) -> ReportRow:
    """Opening a store of a million single appends, killed with the longest tail; and closed."""
    return opening.measure(bench.directory)


def sql_begin(bench: CoreBench) -> ReportRow:
    """Interactive transactions: a SELECT, an INSERT and a put, beside the same in plain SQLite."""
    limit, meter = application.interactive(bench.store, bench.directory, bench.seconds)
    return bench.row(meter, limit).require_ratio(0.6)


def inbox(bench: CoreBench) -> ReportRow:
    """Messages put by SQL, 1,000 rows per transaction of `sqlite3`, until all are in a queue."""
    rows = application.ROWS
    limit, meter = application.posts(bench.directory, bench.seconds, rows=rows)
    return bench.row(meter, limit, batch=rows).require_rate(100_000)


def inbox_single(bench: CoreBench) -> ReportRow:
    """Messages put by SQL, one row per transaction, beside the same connection without Millstream."""
    limit, meter = application.posts(bench.directory, bench.seconds, rows=1)
    return bench.row(meter, limit).require_ratio(0.8)


def inbox_latency(bench: CoreBench) -> ReportRow:
    """From the commit of a message that was put by SQL until a waiting consumer has claimed it."""
    meter = application.claim_latency(bench.directory, bench.seconds)
    p95_ms = meter.percentile_ms(0.95)
    return meter.row(details={"p95_ms": p95_ms}).require("p95 ≤ 50 ms", p95_ms <= 50)


class CoroutineCrowd:
    """Coroutines on a store, which all append as fast as they can for a while."""

    def __init__(self, store: Store, log: str, value: bytes, *, count: int) -> None:
        self._runner = asyncio.Runner()
        self._store, self._log, self._value = store, log, value
        self._meters = [StepMeter() for _ in range(count)]
        self._session: AsyncEmbeddedSession | None = None

    def step(self, length_s: float) -> int:
        """Run all coroutines for a while, and return the number of messages."""
        before = sum(meter.messages for meter in self._meters)
        self._runner.run(self._work(length_s))
        return sum(meter.messages for meter in self._meters) - before

    async def _work(self, length_s: float) -> None:
        if self._session is None:
            self._session = AsyncEmbeddedSession(self._store)
        log, until_s = aio_database.Millstream(self._session).log(self._log), seconds() + length_s

        async def append(meter: StepMeter) -> None:
            now_s = seconds()
            while now_s < until_s:
                await log.append(self._value)
                after_s = seconds()
                meter.step_s.append(after_s - now_s)
                meter.messages += 1
                now_s = after_s

        await asyncio.gather(*map(append, self._meters))

    def finish(self, row: ReportRow, alone: StepMeter) -> ReportRow:
        """Close the loop; say how long appends took, and how many times one producer they were."""
        self._runner.close()
        all_steps = StepMeter()
        all_steps.step_s = [took_s for meter in self._meters for took_s in meter.step_s]
        row.p50_ms, row.p99_ms = all_steps.percentile_ms(0.5), all_steps.percentile_ms(0.99)
        row.details = {
            "coroutines": len(self._meters),
            "one_producer_per_second": round(alone.per_second()),
            "times_one_producer": round(row.per_second / alone.per_second(), 2),
        }
        return row


SUITE = Suite(
    CoreBench,
    publish_one,
    publish_batch,
    publish_batch_headers,
    publish_threads,
    publish_coroutines,
    producer_one,
    producer_coroutine,
    read_blocks,
    read_records,
    read_singles,
    sql_begin,
    inbox,
    inbox_single,
    inbox_latency,
    open_large,
)
