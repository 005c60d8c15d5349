"""Consumers of queues: single messages in a loop, claimed ahead and acknowledged in groups.

Each takes turns with a plain SQLite queue that claims and deletes by 100.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from random import Random
from time import sleep
from typing import Any

import millstream
from millstream.bench.measure import PAYLOAD_BYTES, ReportRow, StepMeter, payloads, seconds
from millstream.bench.queue_bench import BATCH, LEASE_S, QueueBench
from millstream.bench.reference import GROUP, PRIORITY, Order
from millstream.bench.served import Bench
from millstream.bench.singles import put_singles
from millstream.bench.turns import Backlog, Label, Side, alternate
from millstream.header import HeaderMapping
from millstream.streaming.options import LINGER_S
from millstream.threads.queue import Queue

STEP = 500
"""Messages per step: the time of a step has some claims in it."""
GROUPS = 10_000
LIVE_PER_SECOND = 5_000
SOCKET_LIVE_PER_SECOND = 1_000
PAUSE_S = 0.0002
"""How long a paced producer sleeps between two looks at the time."""
TIME_BYTES = 8


class ConsumingLoop:
    """A loop that acknowledges each message; a step of the bench takes `STEP` messages."""

    def __init__(self, queue: Queue) -> None:
        self._consumer = queue.consumer(lease=LEASE_S, timeout=0)
        self._consumer.__enter__()
        self._loop = iter(self._consumer)

    def step(self) -> int:
        """Take up to `STEP` messages; fewer if no more wait."""
        count, ack = 0, self._consumer.ack
        for message in islice(self._loop, STEP):
            ack(message)
            count += 1
        if count < STEP:
            self._loop = iter(self._consumer)
        return count

    def close(self) -> None:
        """Send the last acknowledgements."""
        self._consumer.close()


def consumer_one(bench: QueueBench) -> ReportRow:
    """One thread in a loop over messages that were published singly."""
    queue = bench.store.queue("singly", sources="singly", start="earliest", lease=LEASE_S)
    backlog = Backlog(
        lambda values, headers: put_singles(bench.store, "singly", values, headers),
        size=bench.sizes.shallow,
    )
    loop = ConsumingLoop(queue)
    reference, meter = alternate(
        [
            bench.reference(BATCH),
            Side(lambda: backlog.took(loop.step()), backlog.fill, bench.store.fold),
        ],
        bench.seconds / 4,
        slice_s=bench.sizes.short_slice_s,
    )
    loop.close()
    row = bench.row(batch=BATCH, reference=reference, meter=meter)
    return row.require_ratio(1.2).require_rate(150_000)


def consumer_groups(bench: QueueBench) -> ReportRow:
    """The same loop over a queue with the order of many groups."""
    label = partial(_by_chance, numbers=Random(17))
    options = {"group_by": "tenant", "group_in_flight": 1}
    return _ordered(bench, options, label, GROUP)


def consumer_priority(bench: QueueBench) -> ReportRow:
    """The same loop over a queue with priorities."""
    return _ordered(bench, {"priority_by": "priority"}, _by_priority, PRIORITY)


def _by_chance(_: int, numbers: Random) -> HeaderMapping:
    return {"tenant": numbers.randrange(GROUPS)}


def _by_priority(number: int) -> HeaderMapping:
    return {"priority": number % 10}


def _ordered(bench: QueueBench, options: dict[str, Any], label: Label, order: Order) -> ReportRow:
    queue, backlog = bench.filled("ordered", size=bench.sizes.backlog, options=options, label=label)
    loop = ConsumingLoop(queue)
    reference, meter = alternate(
        [
            bench.reference(BATCH, order=order, label=label),
            bench.side(lambda: backlog.took(loop.step()), backlog),
        ],
        bench.seconds,
        slice_s=bench.sizes.slice_s,
    )
    loop.close()
    row = meter.row(beside=reference, batch=BATCH, sync_delay_ms=bench.delay_s * 1000)
    return row.require_rate(50_000)


class LiveStream:
    """A producer that puts messages at an even pace, and a consumer of them, each in a thread."""

    def __init__(
        self,
        queue: Queue,
        *,
        per_second: int = LIVE_PER_SECOND,
        linger: float = LINGER_S,
        consumed: Queue | None = None,
    ) -> None:
        """`consumed` is the same queue over a connection of the consumer's own."""
        self.meter = StepMeter()
        """How long each message took from before its put until the loop got it."""
        self._queue, self._consumed = queue, consumed or queue
        self._per_second, self._linger = per_second, linger
        self._pool = ThreadPoolExecutor(2)

    def step(self, length_s: float) -> int:
        """Let both work for a while; how many messages went through."""
        producing = self._pool.submit(self._produce, max(1, round(length_s * self._per_second)))
        consuming = self._pool.submit(self._consume)
        producing.result()
        return consuming.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _produce(self, count: int) -> None:
        padding, start_s = bytes(PAYLOAD_BYTES - TIME_BYTES), seconds()
        with self._queue.producer(linger=self._linger) as producer:
            for number in range(count):
                while seconds() < start_s + number / self._per_second:
                    sleep(PAUSE_S)
                producer.put(int(seconds() * 1e9).to_bytes(TIME_BYTES) + padding)
            producer.put(b"")

    def _consume(self) -> int:
        count = 0
        with self._consumed.consumer(lease=LEASE_S) as consumer:
            for message in consumer:
                consumer.ack(message)
                if not message.value:
                    break
                sent_s = int.from_bytes(message.value[:TIME_BYTES]) / 1e9
                self.meter.step_s.append(seconds() - sent_s)
                count += 1
        return count


def live_stream(bench: QueueBench) -> ReportRow:
    """A producer and a consumer of single messages in one process, at an even pace."""
    stream = LiveStream(bench.store.queue("stream", lease=LEASE_S))
    reference, meter = alternate(
        [bench.reference(1), Side(lambda: stream.step(bench.sizes.slice_s))],
        bench.seconds,
        slice_s=bench.sizes.slice_s,
    )
    stream.close()
    row = bench.row(batch=1, reference=reference, meter=meter)
    row.p50_ms, row.p99_ms = stream.meter.percentile_ms(0.5), stream.meter.percentile_ms(0.99)
    row.require("p50 ≤ 1.5 ms", row.p50_ms <= 1.5)
    return row.require("p99 ≤ 10 ms", row.p99_ms <= 10)


def socket_consumer_one(bench: Bench) -> ReportRow:
    """One thread in a loop over the messages of a server."""
    values = payloads(1_000)
    with millstream.open(bench.url) as ms:
        queue = ms.create_queue("consumed", lease=LEASE_S)
        loop = ConsumingLoop(queue)

        def work() -> StepMeter:
            meter = StepMeter()
            while meter.elapsed_s < bench.seconds:
                for _ in range(50):
                    queue.put_many(values)
                meter.run(loop.step, min(0.3, bench.seconds))
            return meter

        row = bench.row(work)
        loop.close()
    return row.require_rate(60_000)


def socket_live(bench: Bench) -> ReportRow:
    """From a producer over the server to a consumer that waits, at an even pace and without linger."""
    with millstream.open(bench.url) as ms, millstream.open(bench.url) as reader:
        queue = ms.create_queue("live", lease=LEASE_S)
        stream = LiveStream(
            queue, per_second=SOCKET_LIVE_PER_SECOND, linger=0, consumed=reader.queue("live")
        )

        def work() -> StepMeter:
            began_s = seconds()
            stream.meter.messages = stream.step(bench.seconds)
            stream.meter.elapsed_s = seconds() - began_s
            return stream.meter

        row = bench.row(work)
        stream.close()
    return row.require("p50 ≤ 1 ms", row.p50_ms <= 1).require("p99 ≤ 5 ms", row.p99_ms <= 5)
