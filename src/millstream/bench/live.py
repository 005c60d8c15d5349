"""A live queue: a thread publishes while a second thread claims, message by message."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from millstream.bench.measure import StepMeter, seconds
from millstream.threads.log import Log
from millstream.threads.queue import Queue

AHEAD = 2
"""Messages that may be published and not acknowledged: more would only measure how long a line is."""

PATIENCE_S = 1.0

Permits = SimpleQueue[None]
"""Permits to publish, an item per message: the cheapest object that two threads can share."""


class LivePair:
    """A producer and a consumer, each in a thread of its own."""

    def __init__(self, log: Log, queue: Queue, value: bytes) -> None:
        self.meter = StepMeter()
        """How long each message took from before it was published until it was acknowledged."""
        self._log, self._queue, self._value = log, queue, value
        self._pool = ThreadPoolExecutor(2)

    def step(self, length_s: float) -> int:
        """Let both work for a while; how many messages went through."""
        sent, permits, until_s = deque[float](), Permits(), seconds() + length_s
        for _ in range(AHEAD):
            permits.put(None)
        producing = self._pool.submit(self._produce, sent, permits, until_s)
        consuming = self._pool.submit(self._consume, sent, permits, until_s)
        producing.result()
        return consuming.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _produce(self, sent: deque[float], permits: Permits, until_s: float) -> None:
        while seconds() < until_s:
            try:
                permits.get(timeout=PATIENCE_S)
            except Empty:
                continue
            sent.append(seconds())
            self._log.append(self._value)

    def _consume(self, sent: deque[float], permits: Permits, until_s: float) -> int:
        done = 0
        while seconds() < until_s or sent:
            for message in self._queue.claim(1, wait=0.01):
                self._queue.ack(message)
                if sent:  # else it was published at the very end of the last step
                    self.meter.step_s.append(seconds() - sent.popleft())
                permits.put(None)
                done += 1
        return done
