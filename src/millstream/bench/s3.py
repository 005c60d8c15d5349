"""Object storage's workloads, on moto's S3 on this machine; some with 80 ms put into every request.

What is measured is Millstream and SlateDB, not a network: the latency of a real object store is
imitated by a proxy.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import millstream
from millstream import aio
from millstream.bench.measure import ReportRow, StepMeter, payloads, seconds
from millstream.bench.objects import BUCKET, DelayingProxy, object_server, variables
from millstream.bench.queue_bench import ClaimingWorker
from millstream.bench.server_program import served
from millstream.bench.suite import Suite

BATCH = 1_000
CLAIMED = 100
DELAY_S = 0.08
"""What is put into every request: an object store in the same region answers about so."""

PRODUCERS = 500
SINGLES = 1_000
SINGLES_PER_S = 100


class S3Bench:
    """One run: a server of objects, a proxy before it, and how many records are read."""

    def __init__(self, directory: Path, *, seconds_each: float, records: int) -> None:
        self.seconds, self.records = seconds_each, records
        self._stack = ExitStack()
        self._made = 0
        server = self._stack.enter_context(object_server())
        self.proxy = self._stack.enter_context(DelayingProxy(server))
        self.direct = server
        self._stack.enter_context(variables(server))

    def place(self) -> str:
        """The address of another empty store."""
        self._made += 1
        return f"s3://{BUCKET}/store-{self._made}"

    def close(self) -> None:
        """End the server."""
        self._stack.close()


def s3_batch(bench: S3Bench) -> ReportRow:
    """Append batches of a thousand in sequence."""
    values, meter = payloads(BATCH), StepMeter()
    with millstream.open(bench.place()) as ms:
        log = ms.log("batches")
        meter.run(lambda: len(log.append_many(values)), bench.seconds)
    return meter.row(batch=BATCH).require_rate(50_000)


def s3_claim(bench: S3Bench) -> ReportRow:
    """Claim as a worker does: acknowledge and claim in a single commit."""
    values, meter = payloads(BATCH), StepMeter()
    with millstream.open(bench.place()) as ms:
        log = ms.log("jobs")
        queue = ms.queue("claimed", sources=["jobs"], start="earliest")
        worker = ClaimingWorker(queue, CLAIMED)
        until = seconds() + bench.seconds
        while seconds() < until:
            for _ in range(20):
                log.append_many(values)
            meter.run(worker.step, min(1.0, bench.seconds))
    return meter.row(batch=CLAIMED).require_rate(10_000)


def s3_read(bench: S3Bench) -> ReportRow:
    """A log from its first record to its last: by a handle that has read nothing, and then again."""
    address, values = bench.place(), payloads(BATCH)
    with millstream.open(address) as ms:
        for _ in range(0, bench.records, BATCH):
            ms.log("large").append_many(values)
    cold, warm = StepMeter(), StepMeter()
    with millstream.open(address) as ms:
        read = lambda: sum(len(block) for block in ms.log("large").read_blocks())  # noqa: E731
        cold.run(read, 0.0001)
        warm.run(read, bench.seconds)
    details = {"cold_per_second": round(cold.per_second()), "records": bench.records}
    row = warm.row(batch=BATCH, details=details).require_rate(1_000_000)
    return row.require("cold ≥ 300,000/s", cold.per_second() >= 300_000)


def s3_latency(bench: S3Bench) -> ReportRow:
    """Single appends with 80 ms in every request: alone, by a crowd, and at a steady pace."""
    proxy = bench.proxy
    with variables(proxy.address):
        proxy.delay_s = DELAY_S
        try:
            alone, crowd, requests = asyncio.run(_latency(bench))
        finally:
            proxy.delay_s = 0.0
    p50_ms = alone.percentile_ms(0.5)
    row = alone.row(
        details={
            "producers": PRODUCERS,
            "producers_per_second": round(crowd.per_second()),
            "requests_per_1000": requests,
        }
    )
    row.require("p50 ≤ 250 ms", p50_ms <= 250)
    row.require(f"{PRODUCERS} producers ≥ 2,000/s", crowd.per_second() >= 2_000)
    return row.require("≤ 30 requests per 1,000 at 100/s", requests <= 30)


async def _latency(bench: S3Bench) -> tuple[StepMeter, StepMeter, int]:
    alone, crowd = StepMeter(), StepMeter()
    value = payloads(1)[0]
    async with await aio.open(bench.place()) as ms:
        log = ms.log("singles")
        until = seconds() + bench.seconds
        while seconds() < until:
            began = seconds()
            await log.append(value)
            alone.step_s.append(seconds() - began)
        alone.messages, alone.elapsed_s = len(alone.step_s), sum(alone.step_s)

        began, until = seconds(), seconds() + bench.seconds

        async def produce() -> int:
            sent = 0
            while seconds() < until:
                await log.append(value)
                sent += 1
            return sent

        crowd.messages = sum(await asyncio.gather(*(produce() for _ in range(PRODUCERS))))
        crowd.elapsed_s = seconds() - began
        return alone, crowd, await _requests(bench, log, value)


async def _requests(bench: S3Bench, log: Any, value: bytes) -> int:
    """How many requests a thousand appends need that come one by one, at a steady pace."""
    before = bench.proxy.requests
    running = []
    for _ in range(SINGLES):
        running.append(asyncio.ensure_future(log.append(value)))
        await asyncio.sleep(1 / SINGLES_PER_S)
    await asyncio.gather(*running)
    return bench.proxy.requests - before


def s3_takeover(bench: S3Bench) -> ReportRow:
    """From the death of a server until its standby has stored a message."""
    meter, place = StepMeter(), bench.place()
    with served(place) as serving:
        with millstream.open(serving.url()) as ms:
            ms.log("orders").append(b"before")
        with served(place, "--standby") as standby:
            standby.await_said("waiting")
            began = seconds()
            serving.kill()
            with millstream.open(standby.url()) as ms:
                ms.log("orders").append(b"after")
                end_offset = ms.log("orders").end_offset()
            took = seconds() - began
    if end_offset != 2:
        raise RuntimeError(f"{end_offset} messages were there after a takeover, not 2")
    meter.messages, meter.elapsed_s, meter.step_s = 1, took, [took]
    return meter.row().require("≤ 10 s", took <= 10)


SUITE = Suite(S3Bench, s3_batch, s3_claim, s3_read, s3_latency, s3_takeover)
