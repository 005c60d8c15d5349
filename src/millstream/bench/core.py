"""The core's workloads: appends one by one, in batches, from many threads; reads; opening.

Each is measured beside a raw file that is synced as often, in the same directory and run.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from millstream.bench import opening
from millstream.bench.measure import Meter, Row, Step, seconds, take_turns
from millstream.bench.rawfile import RawFile
from millstream.bench.slow import open_slow_engine
from millstream.embedded import EmbeddedSession, open_store
from millstream.record import Headers
from millstream.threads.database import Millstream
from millstream.threads.log import Log

PAYLOAD_BYTES = 100
BATCH = 1_000
THREADS = 32
READ_RECORDS = 1_000_000
RAW_APPENDS_MIN = 9_000
"""Below this many raw synced appends per second the machine was busy, and a run proves nothing."""


class Bench:
    """One run: a directory, a time per workload, and perhaps a slow disk."""

    def __init__(self, directory: Path, *, seconds_each: float, sync_delay_ms: float) -> None:
        self.directory = directory
        self.seconds = seconds_each
        self.delay_s = sync_delay_ms / 1000
        self.raw = RawFile(directory, sync_delay_s=self.delay_s)
        self.store = self._open("bench.db")

    def _open(self, name: str) -> Millstream:
        engine = open_slow_engine(self.directory / name, sync_delay_s=self.delay_s)
        return Millstream(EmbeddedSession(open_store(engine)))

    def close(self) -> None:
        """Let go of files and store."""
        self.store.close()
        self.raw.close()

    def row(self, workload: str, *, batch: int, limit: Meter, meter: Meter) -> Row:
        """A report line of a workload that was measured beside its limit."""
        return Row(
            workload=workload,
            payload_bytes=PAYLOAD_BYTES,
            batch=batch,
            per_second=round(meter.per_second()),
            p50_ms=meter.percentile_ms(0.5),
            p99_ms=meter.percentile_ms(0.99),
            limit_per_second=round(limit.per_second()),
            ratio=round(meter.per_second() / limit.per_second(), 3),
            sync_delay_ms=self.delay_s * 1000,
        )


def publish_one(bench: Bench) -> Row:
    """One producer, one message per commit."""
    log, value = bench.store.log("one"), os.urandom(PAYLOAD_BYTES)
    limit, meter = take_turns([_raw_one(bench, value), _append(log, value)], bench.seconds)
    row = bench.row("publish_one", batch=1, limit=limit, meter=meter)
    row.required = "ratio ≥ 0.4"
    row.passed = row.ratio >= 0.4  # type: ignore[operator]
    if not bench.delay_s and limit.per_second() < RAW_APPENDS_MIN:
        row.void = f"the raw file reached only {limit.per_second():,.0f} synced appends/s"
    return row


def publish_batch(bench: Bench) -> Row:
    """Batches without keys or headers."""
    log, values = bench.store.log("batch"), _values()
    limit, meter = take_turns([_raw_batch(bench, values), _append_many(log, values)], bench.seconds)
    row = bench.row("publish_batch", batch=BATCH, limit=limit, meter=meter)
    row.required = "ratio ≥ 0.40 and > 900,000/s"
    row.passed = row.ratio >= 0.4 and row.per_second > 900_000  # type: ignore[operator]
    return row


def publish_batch_headers(bench: Bench) -> Row:
    """Batches with a key and three headers each."""
    log, values = bench.store.log("headers"), _values()
    keys = [f"customer-{i:05d}".encode() for i in range(BATCH)]
    headers: list[Headers | None] = [
        {"region": "eu" if i % 3 else "us", "amount": i * 7, "express": i % 2 == 0}
        for i in range(BATCH)
    ]

    def step() -> int:
        return len(log.append_many(values, keys=keys, headers=headers))

    limit, meter = take_turns([_raw_batch(bench, values), step], bench.seconds)
    row = bench.row("publish_batch_headers", batch=BATCH, limit=limit, meter=meter)
    row.required = "> 450,000/s"
    row.passed = row.per_second > 450_000
    return row


def publish_threads(bench: Bench) -> Row:
    """Many threads, one message per call, beside one thread alone."""
    log, value = bench.store.log("threads"), os.urandom(PAYLOAD_BYTES)
    crowd = Crowd(log, value)
    raw, alone, together = take_turns(
        [_raw_one(bench, value), _append(log, value), crowd.step], bench.seconds
    )
    crowd.close()
    row = bench.row("publish_threads", batch=1, limit=raw, meter=together)
    least = 15 if bench.delay_s else 3
    times = together.per_second() / alone.per_second()
    row.p50_ms, row.p99_ms = crowd.meter.percentile_ms(0.5), crowd.meter.percentile_ms(0.99)
    row.details = {
        "threads": THREADS,
        "one_producer_per_second": round(alone.per_second()),
        "times_one_producer": round(times, 2),
    }
    row.required = f"≥ {least} times one producer"
    row.passed = times >= least
    return row


class Crowd:
    """Threads that append as fast as they can while a step lasts."""

    STEP_S = 0.1

    def __init__(self, log: Log, value: bytes) -> None:
        self.meter = Meter()
        self._log, self._value = log, value
        self._go = threading.Barrier(THREADS + 1)
        self._done = threading.Barrier(THREADS + 1)
        self._until = 0.0
        self._counts = [0] * THREADS
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, args=(i,), daemon=True) for i in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def step(self) -> int:
        """Let all of them append for a while; how many they appended."""
        before = sum(self._counts)
        self._until = seconds() + self.STEP_S
        self._go.wait()
        self._done.wait()
        return sum(self._counts) - before

    def close(self) -> None:
        """End the threads."""
        self._closing = True
        self._go.wait()
        for thread in self._threads:
            thread.join()

    def _work(self, index: int) -> None:
        while True:
            self._go.wait()
            if self._closing:
                return
            now = seconds()
            while now < self._until:
                self._log.append(self._value)
                self._counts[index] += 1
                after = seconds()
                self.meter.step_s.append(after - now)
                now = after
            self._done.wait()


def read_blocks(bench: Bench) -> Row:
    """A million records in order, as blocks."""
    log = _filled(bench)
    row = _read(bench, "read_blocks", lambda: sum(len(block) for block in log.read_blocks()))
    row.required = "> 5,000,000/s"
    row.passed = row.per_second > 5_000_000
    return row


def read_records(bench: Bench) -> Row:
    """A million records in order, as objects."""
    log = _filled(bench)
    row = _read(bench, "read_records", lambda: sum(1 for _ in log.read()))
    row.required = "> 400,000/s"
    row.passed = row.per_second > 400_000
    return row


def _read(bench: Bench, name: str, read: Callable[[], int]) -> Row:
    meter = Meter()
    meter.run(read, bench.seconds)
    return Row(
        workload=name,
        payload_bytes=PAYLOAD_BYTES,
        batch=BATCH,
        per_second=round(meter.per_second()),
        p50_ms=meter.percentile_ms(0.5),
        p99_ms=meter.percentile_ms(0.99),
    )


def _filled(bench: Bench) -> Log:
    log, values = bench.store.log("read"), _values()
    while log.end_offset() < READ_RECORDS:
        log.append_many(values)
    return log


def _values() -> list[bytes]:
    return [os.urandom(PAYLOAD_BYTES) for _ in range(BATCH)]


def _raw_one(bench: Bench, value: bytes) -> Step:
    def step() -> int:
        bench.raw.append(value)
        return 1

    return step


def _raw_batch(bench: Bench, values: list[bytes]) -> Step:
    data = b"".join(values)

    def step() -> int:
        bench.raw.append(data)
        return len(values)

    return step


def _append(log: Log, value: bytes) -> Step:
    def step() -> int:
        log.append(value)
        return 1

    return step


def _append_many(log: Log, values: list[bytes]) -> Step:
    return lambda: len(log.append_many(values))


def open_large(bench: Bench) -> Row:
    """Opening a store of a million single appends, killed with the longest tail; and closed."""
    return opening.measure(bench.directory)


WORKLOADS: dict[str, Callable[[Bench], Row]] = {
    "publish_one": publish_one,
    "publish_batch": publish_batch,
    "publish_batch_headers": publish_batch_headers,
    "publish_threads": publish_threads,
    "read_blocks": read_blocks,
    "read_records": read_records,
    "open_large": open_large,
}


def run(
    names: list[str],
    *,
    directory: Path | None,
    seconds_each: float,
    sync_delay_ms: float,
    started: Callable[[str], None],
) -> Iterator[Row]:
    """Run workloads one after the other; `started` is told the name of each."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-", dir=directory) as found:
        bench = Bench(Path(found), seconds_each=seconds_each, sync_delay_ms=sync_delay_ms)
        try:
            for name in names:
                started(name)
                yield WORKLOADS[name](bench)
        finally:
            bench.close()
