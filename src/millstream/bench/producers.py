"""The workloads of producers: single messages that are handed in one by one, and stored as blocks.

A second figure is the time from the call until a message is durable, while messages come at a steady
rate that leaves the producer idle between its blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import sleep
from typing import Any, Protocol

import millstream
from millstream.aio import database as aio_database
from millstream.bench.measure import ReportRow, Step, StepMeter, payloads, seconds
from millstream.bench.served import Bench
from millstream.bench.turns import Side, alternate
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.store.store import Store
from millstream.threads.database import Millstream
from millstream.threads.log import Log

STEP_MESSAGES = 1_000
STEADY_PER_SECOND = 1_000
STEADY_S_MAX = 5.0


class _CoreBench(Protocol):
    """What the workloads need of the core's bench."""

    store: Millstream
    raw_store: Store
    seconds: float

    def raw_step(self, *values: bytes) -> Step:
        """The limit: the same bytes to a raw file, synced once."""

    def row(self, meter: StepMeter, limit: StepMeter, **figures: Any) -> ReportRow:
        """A report line of a workload that was measured beside its limit."""


def producer_one(bench: _CoreBench) -> ReportRow:
    """A thread hands single messages to a producer, beside synced blocks in a raw file."""
    values = payloads(STEP_MESSAGES)
    limit, meter = _beside(bench.store.log("producer"), bench.raw_step(*values), values, bench)
    row = bench.row(meter, limit)
    _add_steady(row, bench.store.log("producer"), bench.seconds)
    return row.require_rate(250_000).require("p99 ≤ 5 ms", row.p99_ms <= 5)


def producer_coroutine(bench: _CoreBench) -> ReportRow:
    """A coroutine hands single messages to a producer, beside synced blocks in a raw file."""
    values = payloads(STEP_MESSAGES)
    task = _ProducingTask(bench.raw_store, values * 10)
    try:
        sides = [Side(bench.raw_step(*values)), Side(task.step, settle=task.flush)]
        limit, meter = alternate(sides, bench.seconds)
    finally:
        task.close()
    return bench.row(meter, limit).require_rate(200_000)


def socket_producer_one(bench: Bench) -> ReportRow:
    """A thread hands single messages to a producer over the socket."""
    values = payloads(STEP_MESSAGES)
    with millstream.open(bench.url) as ms:
        log = ms.log("producer")

        def work() -> StepMeter:
            meter = StepMeter()
            with log.producer() as producer:
                meter.run(_hand_in(producer.append, values), bench.seconds)
                began_s = seconds()
                producer.flush()
                meter.elapsed_s += seconds() - began_s
            return meter

        row = bench.row(work)
        _add_steady(row, log, bench.seconds)
    return row.require_rate(120_000)


def _beside(
    log: Log, limit: Step, values: list[bytes], bench: _CoreBench
) -> tuple[StepMeter, StepMeter]:
    """Measure a producer of a log in turns with a limit."""
    with log.producer() as producer:
        step = _hand_in(producer.append, values)
        raw, ours = alternate([Side(limit), Side(step, settle=producer.flush)], bench.seconds)
    return raw, ours


def _hand_in(append: Callable[[bytes], object], values: list[bytes]) -> Step:
    def step() -> int:
        for value in values:
            append(value)
        return len(values)

    return step


def _add_steady(row: ReportRow, log: Log, total_s: float) -> None:
    """Replace the percentiles by those of messages that come at a steady rate."""
    meter = StepMeter()
    value = payloads(1)[0]

    def noted(called_s: float) -> Callable[[object], None]:
        return lambda handle: meter.step_s.append(seconds() - called_s)

    with log.producer() as producer:
        began_s = due_s = seconds()
        while due_s - began_s < min(total_s, STEADY_S_MAX):
            producer.append(value, callback=noted(seconds()))
            due_s += 1 / STEADY_PER_SECOND
            sleep(max(0.0, due_s - seconds()))
    row.p50_ms, row.p99_ms = meter.percentile_ms(0.5), meter.percentile_ms(0.99)
    row.details = {**row.details, "percentiles_at_per_second": STEADY_PER_SECOND}


class _ProducingTask:
    """A coroutine with a producer, in an event loop of its own."""

    def __init__(self, store: Store, values: list[bytes]) -> None:
        self._runner = asyncio.Runner()
        self._values = values
        self._producer = self._runner.run(self._open(store))

    async def _open(self, store: Store) -> Any:
        log = aio_database.Millstream(AsyncEmbeddedSession(store)).log("producer-coroutine")
        return log.producer()

    def step(self) -> int:
        """Hand in messages, and return their number."""
        return self._runner.run(self._hand_in())

    async def _hand_in(self) -> int:
        append = self._producer.append
        for value in self._values:
            await append(value)
        return len(self._values)

    def flush(self) -> None:
        """Wait until all messages are durable."""
        self._runner.run(self._producer.flush())

    def close(self) -> None:
        """End the producer and the loop."""
        self._runner.run(self._producer.close())
        self._runner.close()
