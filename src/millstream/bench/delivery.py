"""The server's deliveries: from a producer to consumers that wait, as most programs are."""

from __future__ import annotations

import asyncio
from typing import Any

from millstream import Message, aio
from millstream.aio.database import Millstream
from millstream.aio.queue import Queue
from millstream.bench.measure import PAYLOAD_BYTES, ReportRow, StepMeter, seconds
from millstream.bench.served import Bench, in_loop

WAITING = 4
GROUPS = 8
WAIT_S = 10


def delivery_latency(bench: Bench) -> ReportRow:
    """From a publish to the consumer that waits for it, both syncs included."""

    async def work(ms: Millstream) -> StepMeter:
        queue = await ms.create_queue("latency", lease=3_600)
        consumer = await aio.open(bench.url)
        waiting = await consumer.create_queue("latency", lease=3_600)
        meter = StepMeter()
        began = seconds()
        while seconds() - began < bench.seconds:
            claimed = asyncio.ensure_future(waiting.claim(1, wait=10))
            await asyncio.sleep(0.005)
            put_at = seconds()
            publishing = asyncio.ensure_future(queue.put(b"x" * PAYLOAD_BYTES))
            (message,) = await claimed
            meter.step_s.append(seconds() - put_at)
            meter.messages += 1
            await publishing
            await queue.ack(message)
        meter.elapsed_s = seconds() - began
        await consumer.close()
        return meter

    row = bench.row(lambda: in_loop(bench, work))
    syncs_ms = 2 * row.sync_delay_ms  # of the publish, and of the claim
    return row.require("p50 ≤ 0.8 ms", row.p50_ms - syncs_ms <= 0.8).require(
        "p99 ≤ 3 ms", row.p99_ms - syncs_ms <= 3
    )


def delivery_waiting(bench: Bench) -> ReportRow:
    """Let a producer put single messages while a few consumers wait on a queue."""
    return _delivered(bench, "waiting", consumers=WAITING)


def delivery_groups(bench: Bench) -> ReportRow:
    """Do the same with a consumer per group: messages of a group come in order."""
    return _delivered(bench, "grouped", consumers=GROUPS, group_by="_key")


def _delivered(bench: Bench, name: str, *, consumers: int, **spec: Any) -> ReportRow:
    """Measure the rate from a producer to consumers, and the latency of each message."""

    put_at: list[float] = []

    async def work(ms: Millstream) -> StepMeter:
        queue = await ms.create_queue(name, lease=3_600, **spec)
        opened = [await aio.open(bench.url) for _ in range(consumers)]
        meter = StepMeter()
        consuming = [
            asyncio.ensure_future(_consume(await handle.queue(name), meter, put_at))
            for handle in opened
        ]
        began = seconds()
        while seconds() - began < bench.seconds:
            number = len(put_at)
            put_at.append(seconds())
            value = number.to_bytes(8, "big").ljust(PAYLOAD_BYTES)
            await queue.put(value, key=str(number % consumers))
        while meter.messages < len(put_at):
            await asyncio.sleep(0.001)
        meter.elapsed_s = seconds() - began
        for task in consuming:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=True)
        for handle in opened:
            await handle.close()
        return meter

    meters: list[StepMeter] = []

    def measured() -> StepMeter:
        meters.append(in_loop(bench, work))
        return meters[-1]

    row = bench.row(measured, details={"consumers": consumers})
    return row.require("every message once", meters[0].messages == len(put_at))


async def _consume(queue: Queue, meter: StepMeter, put_at: list[float]) -> None:
    """Claim single messages, and acknowledge each message with the next claim."""
    held: list[Message] = []
    while True:
        held = await queue.claim(1, ack=held, wait=WAIT_S)
        for message in held:
            number = int.from_bytes((message.value or b"")[:8], "big")
            meter.step_s.append(seconds() - put_at[number])
            meter.messages += 1
