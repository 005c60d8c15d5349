"""Single appends: how to fill a log with them, and how to claim them.

A producer appends several single messages per millisecond. The bench puts as many single appends
into a commit, so filling takes no longer than measuring.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.bench.measure import payloads
from millstream.bench.turns import Backlog
from millstream.header import HeaderMapping
from millstream.queue.model.message import Message
from millstream.threads.database import Millstream
from millstream.threads.log import Log
from millstream.threads.queue import Queue

PER_COMMIT = 4
"""Messages that a producer appends per millisecond."""

LEASE_S = 3_600
BLOCK = 1_000


def put_singles(
    store: Millstream, log: str, values: Sequence[bytes], headers: Sequence[HeaderMapping]
) -> None:
    """Append single messages."""
    for at in range(0, len(values), PER_COMMIT):
        with store.transaction() as tx:
            for number in range(at, min(at + PER_COMMIT, len(values))):
                key = f"customer-{number:05d}"
                tx.append(log, values[number], key=key, headers=headers[number])


class SinglesQueue:
    """A queue on a log of single messages, and what waits in it."""

    def __init__(self, store: Millstream, name: str, *, size: int, batch: int) -> None:
        self._queue: Queue = store.queue(name, sources=name, start="earliest", lease=LEASE_S)
        self._batch = batch
        self._backlog = Backlog(
            lambda values, headers: put_singles(store, name, values, headers), size=size
        )

        self._held: list[Message] = []

    def apart(self) -> int:
        """Claim messages, then acknowledge them, in two commits."""
        messages = self._queue.claim(self._batch)
        self._queue.ack(messages)
        return self._backlog.took(len(messages))

    def at_once(self) -> int:
        """Acknowledge the last ones and claim the next, in one commit, as a worker does."""
        self._held = self._queue.claim(self._batch, ack=self._held)
        return self._backlog.took(len(self._held))

    def fill(self) -> None:
        """Append until as many wait as should."""
        self._backlog.fill()


def put_both(store: Millstream, singles: str, blocks: str, count: int) -> tuple[Log, Log]:
    """Two folded logs with equal records: single appends, and blocks."""
    values = payloads(count)
    headers: list[HeaderMapping] = [
        {"region": f"r{number % 20}", "amount": number % 1_000} for number in range(count)
    ]
    put_singles(store, singles, values, headers)
    for at in range(0, count, BLOCK):
        stop = min(at + BLOCK, count)
        keys = [f"customer-{number:05d}" for number in range(at, stop)]
        store.log(blocks).append_many(values[at:stop], keys=keys, headers=headers[at:stop])
    store.fold()
    return store.log(singles), store.log(blocks)
