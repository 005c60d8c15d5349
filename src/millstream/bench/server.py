"""The server's workloads: a server process, and this process as its load, over loopback.

Everything that is published is durable when it is answered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from urllib.parse import urlsplit

import uvloop

import millstream
from millstream import Message, aio
from millstream.aio.database import Millstream as AsyncMillstream
from millstream.aio.queue import Queue
from millstream.bench.consumers import socket_consumer_one, socket_live
from millstream.bench.delivery import (
    delivery_groups,
    delivery_latency,
    delivery_waiting,
)
from millstream.bench.disk import RawFile
from millstream.bench.measure import (
    PAYLOAD_BYTES,
    ReportRow,
    StepMeter,
    payloads,
    seconds,
)
from millstream.bench.producers import socket_producer_one
from millstream.bench.served import Bench, in_loop
from millstream.bench.suite import Suite
from millstream.bench.turns import Side, alternate

PUBLISH_BATCH = 1_000
CLAIM_BATCH = 100
CONSUMERS = 4
IN_FLIGHT = 64
CONNECTIONS = 32
IDLE = 1_000

Step = Callable[[], Awaitable[int]]
"""Does a piece of work and answers how many messages that was."""


def socket_publish_one(bench: Bench) -> ReportRow:
    """One publish after the other over the socket, by a thread, in turns with a raw file."""
    value = os.urandom(PAYLOAD_BYTES)
    raw = RawFile(bench.directory, sync_delay_s=bench.sync_delay_s)
    with millstream.open(bench.url) as ms:
        log = ms.log("one")

        def publish() -> int:
            log.append(value)
            return 1

        def append_raw() -> int:
            raw.append(value)
            return 1

        contenders = [Side(publish), Side(append_raw)]
        ours, limit = alternate(contenders, bench.seconds)
    raw.close()
    row = ours.row(beside=limit)
    row.sync_delay_ms = bench.sync_delay_s * 1000
    return row.require("p50 ≤ 0.3 ms", row.p50_ms - row.sync_delay_ms <= 0.3)


def socket_publish_connections(bench: Bench) -> ReportRow:
    """Single publishes over sockets, each connection one at a time."""
    value = os.urandom(PAYLOAD_BYTES)

    async def work() -> StepMeter:
        opened = [await aio.open(bench.url) for _ in range(CONNECTIONS)]

        def publisher(ms: AsyncMillstream) -> Step:
            log = ms.log("connections")

            async def step() -> int:
                await log.append(value)
                return 1

            return step

        try:
            return await _side_by_side([publisher(ms) for ms in opened], bench.seconds)
        finally:
            for ms in opened:
                await ms.close()

    row = bench.row(lambda: uvloop.run(work()), details={"connections": CONNECTIONS})
    return row.require_rate(13_000)


def socket_claim_one(bench: Bench) -> ReportRow:
    """One message after the other over the socket, by a thread: acknowledges and claims."""
    values = payloads(PUBLISH_BATCH)
    with millstream.open(bench.url) as ms:
        queue = ms.create_queue("claims-one", lease=3_600)
        held: list[Message] = []

        def claim() -> int:
            nonlocal held
            held = queue.claim(1, ack=held)
            return len(held)

        def work() -> StepMeter:
            meter = StepMeter()
            while meter.elapsed_s < bench.seconds:
                for _ in range(10):
                    queue.put_many(values)
                meter.run(claim, min(0.5, bench.seconds))
            return meter

        row = bench.row(work)
    return row.require_rate(3_000)


def socket_publish_batch(bench: Bench) -> ReportRow:
    """Batches over the socket, a few in flight."""
    values = payloads(PUBLISH_BATCH)

    async def work(ms: AsyncMillstream) -> StepMeter:
        log = ms.log("batches")

        async def step() -> int:
            return len(await log.append_many(values))

        return await _side_by_side([step] * 4, bench.seconds)

    row = bench.row(lambda: in_loop(bench, work), batch=PUBLISH_BATCH)
    return row.require_rate(300_000)


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

    details = {"consumers": CONSUMERS}
    row = bench.row(lambda: in_loop(bench, work), batch=CLAIM_BATCH, details=details)
    return row.require_rate(180_000)


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

    row = bench.row(lambda: in_loop(bench, work), details={"in_flight": IN_FLIGHT})
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

    row = bench.row(lambda: uvloop.run(work()), details={"connections": CONNECTIONS})
    return row.require_rate(8_000)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    raise RuntimeError("an answer without its length")


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
    totals = meter or StepMeter()
    began = seconds()

    async def work(step: Step) -> None:
        now = seconds()
        while now - began < total_s and (count := await step()):
            totals.messages += count
            after = seconds()
            totals.step_s.append(after - now)
            now = after

    await asyncio.gather(*map(work, steps))
    totals.elapsed_s += seconds() - began
    return totals


SUITE = Suite(
    Bench,
    socket_publish_one,
    socket_publish_connections,
    socket_claim_one,
    socket_publish_batch,
    socket_claim_batch,
    socket_consumer_one,
    socket_publish_inflight,
    socket_producer_one,
    rest_publish,
    socket_live,
    delivery_latency,
    delivery_waiting,
    delivery_groups,
    idle_sockets,
)
