"""The server's workloads: a server process, and this process as its load, over loopback.

Everything that is published is durable when it is answered.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop

from millstream import Message, aio
from millstream.aio.database import Millstream as AsyncMillstream
from millstream.aio.queue import Queue
from millstream.bench.disk import RawFile
from millstream.bench.measure import (
    PAYLOAD_BYTES,
    ReportRow,
    StepMeter,
    memory_mib,
    payloads,
    seconds,
)
from millstream.bench.suite import Suite

PUBLISH_BATCH = 1_000
CLAIM_BATCH = 100
CONSUMERS = 4
IN_FLIGHT = 64
CONNECTIONS = 32
IDLE = 1_000

Step = Callable[[], Awaitable[int]]
"""Does a piece of work and answers how many messages that was."""


class Bench:
    """One run: a server on a store of its own, until it is closed."""

    def __init__(self, directory: Path, *, seconds_each: float) -> None:
        self.seconds = seconds_each
        self.directory = directory
        command = [sys.executable, "-m", "millstream", "serve", str(directory / "bench.db")]
        self._process = subprocess.Popen(
            [*command, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self.url: str = msgspec.json.decode(self._process.stdout.readline())["rest"]

    def close(self) -> None:
        """Stop the server."""
        self._process.terminate()
        self._process.communicate(timeout=30)

    def server_mib(self) -> float:
        """Memory of the server that no file backs."""
        return memory_mib(self._process.pid)


def socket_publish_batch(bench: Bench) -> ReportRow:
    """Batches over the socket, a few in flight."""
    values = payloads(PUBLISH_BATCH)

    async def work(ms: AsyncMillstream) -> StepMeter:
        log = ms.log("batches")

        async def step() -> int:
            return len(await log.append_many(values))

        return await _side_by_side([step] * 4, bench.seconds)

    return _in_loop(bench, work).row(batch=PUBLISH_BATCH).require_rate(300_000)


def socket_claim_batch(bench: Bench) -> ReportRow:
    """A few consumers over the socket: each acknowledges its last batch and claims the next."""
    values = payloads(PUBLISH_BATCH)

    async def work(ms: AsyncMillstream) -> StepMeter:
        queue = await ms.create_queue("claims", lease=3_600)
        total = StepMeter()
        while total.elapsed_s < bench.seconds:
            for _ in range(100):
                await queue.put_many(values)
            await _side_by_side([_consumer(queue) for _ in range(CONSUMERS)], inf, total)
        return total

    row = _in_loop(bench, work).row(batch=CLAIM_BATCH, details={"consumers": CONSUMERS})
    return row.require_rate(100_000)


def _consumer(queue: Queue) -> Step:
    """Claims and acknowledges what waits in a queue, until that is nothing."""
    held: list[Message] = []

    async def step() -> int:
        nonlocal held
        held = await queue.claim(CLAIM_BATCH, ack=held)
        return len(held)

    return step


def socket_publish_inflight(bench: Bench) -> ReportRow:
    """Single publishes over one socket, many in flight."""
    value = os.urandom(PAYLOAD_BYTES)

    async def work(ms: AsyncMillstream) -> StepMeter:
        log = ms.log("singles")

        async def step() -> int:
            await log.append(value)
            return 1

        return await _side_by_side([step] * IN_FLIGHT, bench.seconds)

    row = _in_loop(bench, work).row(details={"in_flight": IN_FLIGHT})
    return row.require_rate(10_000)


def rest_publish(bench: Bench) -> ReportRow:
    """Single publishes over REST, each connection one at a time."""
    body, at = os.urandom(PAYLOAD_BYTES), urlsplit(bench.url)
    request = (
        f"POST /logs/rest/records HTTP/1.1\r\nHost: {at.netloc}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body

    async def work() -> StepMeter:
        connections = [
            await asyncio.open_connection(at.hostname, at.port) for _ in range(CONNECTIONS)
        ]
        free = list(connections)

        async def step() -> int:
            reader, writer = free.pop()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 20" not in head.split(b"\r\n", 1)[0]:
                raise RuntimeError(f"the server answered {head[:80]!r}")
            await reader.readexactly(_length(head))
            free.append((reader, writer))
            return 1

        try:
            return await _side_by_side([step] * CONNECTIONS, bench.seconds)
        finally:
            for _, writer in connections:
                writer.close()

    row = uvloop.run(work()).row(details={"connections": CONNECTIONS})
    return row.require_rate(3_000)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    raise RuntimeError("an answer without its length")


def delivery_latency(bench: Bench) -> ReportRow:
    """From a publish to the consumer that waits for it, without the time of a sync."""
    raw = RawFile(bench.directory, sync_delay_s=0.0)
    syncs = StepMeter()

    def append_raw() -> int:
        raw.append(b"x" * PAYLOAD_BYTES)
        return 1

    syncs.run(append_raw, 0.5)
    raw.close()
    sync_ms = 2 * syncs.percentile_ms(0.5)  # of the publish, and of the claim

    async def work(ms: AsyncMillstream) -> StepMeter:
        queue = await ms.create_queue("latency", lease=3_600)
        other = await aio.open(bench.url)
        waiting = await other.create_queue("latency", lease=3_600)
        meter = StepMeter()
        began = seconds()
        while seconds() - began < bench.seconds:
            claimed = asyncio.ensure_future(waiting.claim(1, wait=10))
            await asyncio.sleep(0.005)
            put_at = seconds()
            await queue.put(b"x" * PAYLOAD_BYTES)
            (message,) = await claimed
            meter.step_s.append(seconds() - put_at)
            meter.messages += 1
            await queue.ack(message)
        meter.elapsed_s = seconds() - began
        await other.close()
        return meter

    row = _in_loop(bench, work).row(details={"sync_ms": sync_ms})
    row.p50_ms = round(max(0.0, row.p50_ms - sync_ms), 4)
    row.p99_ms = round(max(0.0, row.p99_ms - sync_ms), 4)
    return row.require("p50 ≤ 2 ms", row.p50_ms <= 2).require("p99 ≤ 20 ms", row.p99_ms <= 20)


def idle_sockets(bench: Bench) -> ReportRow:
    """The server's memory for sockets on which nothing happens."""

    async def work() -> float:
        before = bench.server_mib()
        opened: list[AsyncMillstream] = []
        for _ in range(IDLE):
            opened.append(await aio.open(bench.url))
        after = bench.server_mib()
        for ms in opened:
            await ms.close()
        return after - before

    growth = uvloop.run(work())
    row = ReportRow(details={"memory_mib": round(growth, 1)})
    return row.require(f"{IDLE:,} sockets in < 100 MiB", growth < 100)


async def _side_by_side(
    steps: Sequence[Step], total_s: float, meter: StepMeter | None = None
) -> StepMeter:
    """Repeat all steps, each until the time is over or it has nothing left to do."""
    found = meter or StepMeter()
    began = seconds()

    async def work(step: Step) -> None:
        now = seconds()
        while now - began < total_s and (count := await step()):
            found.messages += count
            after = seconds()
            found.step_s.append(after - now)
            now = after

    await asyncio.gather(*map(work, steps))
    found.elapsed_s += seconds() - began
    return found


def _in_loop(bench: Bench, work: Callable[[AsyncMillstream], Awaitable[StepMeter]]) -> StepMeter:
    async def run() -> StepMeter:
        ms = await aio.open(bench.url)
        try:
            return await work(ms)
        finally:
            await ms.close()

    return uvloop.run(run())


SUITE = Suite(
    Bench,
    socket_publish_batch,
    socket_claim_batch,
    socket_publish_inflight,
    rest_publish,
    delivery_latency,
    idle_sockets,
)
