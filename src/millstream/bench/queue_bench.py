"""What the queue's workloads work on: a store with its queues, a plain SQLite queue beside it.

The backlogs of both are refilled outside the timed slices; what our slices leave to be folded is
folded inside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.bench.disk import open_slow_engine
from millstream.bench.measure import ReportRow, Step, StepMeter
from millstream.bench.reference import TURN, Order, ReferenceQueue
from millstream.bench.turns import (
    Backlog,
    Label,
    Side,
    by_region,
)
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.header import HeaderMapping
from millstream.queue.model.message import Message
from millstream.store.store import Store
from millstream.threads.database import Millstream
from millstream.threads.queue import Queue

BATCH = 100

LEASE_S = 3_600

REFERENCE_MIN = {BATCH: 110_000, 1: 4_200}
"""Below this many messages per second the machine was busy, and a run proves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much waits in the queues, and how long a slice is."""

    backlog: int = 100_000
    shallow: int = 10_000
    deep: int = 1_000_000
    slice_s: float = 0.2
    short_slice_s: float = 0.02
    """For the shallow backlog: what would drain a larger one only in part."""
    due_s: float = 0.5
    """How long what is put with a delay waits: long enough to be routed before it is due."""


class QueueBench:
    """One workload: a directory of its own, a store and the reference in it."""

    def __init__(
        self,
        directory: Path,
        *,
        seconds_each: float,
        sync_delay_ms: float,
        sizes: Sizes | None = None,
    ) -> None:
        self.seconds = seconds_each
        self.sizes = sizes or Sizes()
        self.delay_s = sync_delay_ms / 1000
        engine = open_slow_engine(directory / "bench.db", sync_delay_s=self.delay_s)
        self.raw_store: Store = open_store(engine)
        self.store = Millstream(EmbeddedSession(self.raw_store))
        self._references: list[ReferenceQueue] = []
        self._directory = directory

    def close(self) -> None:
        """Release all claims."""
        self.store.close()
        for reference in self._references:
            reference.close()

    def reference(self, batch: int, *, order: Order = TURN, label: Label = by_region) -> Side:
        """A reference, claiming and acknowledging so many at a time."""
        path = self._directory / f"reference-{len(self._references)}.db"
        queue = ReferenceQueue(path, order=order, sync_delay_s=self.delay_s)
        self._references.append(queue)
        backlog = Backlog(queue.put_many, size=self.sizes.backlog, label=label)

        def step() -> int:
            claims = queue.claim(batch)
            queue.ack(claims)
            return backlog.took(len(claims))

        return Side(step, backlog.fill)

    def filled(
        self,
        name: str,
        *,
        size: int,
        options: dict[str, Any] | None = None,
        label: Label = by_region,
    ) -> tuple[Queue, Backlog]:
        """A queue on a log with its backlog, routed for queues that look at the whole log."""
        log = self.store.log(name)
        spec = {"sources": name, "start": "earliest", "lease": LEASE_S, **(options or {})}
        queue = self.store.queue(name, **spec)

        def put(values: Sequence[bytes], headers: Sequence[HeaderMapping]) -> None:
            log.append_many(values, headers=headers)
            if options:
                queue.peek(0)

        return queue, Backlog(put, size=size, label=label)

    def side(self, step: Step, backlog: Backlog) -> Side:
        """Ours: whatever is left unfolded is folded before the clock stops."""
        return Side(step, backlog.fill, self.store.fold)

    def row(self, *, batch: int, reference: StepMeter, meter: StepMeter) -> ReportRow:
        """A report line of a workload that took turns with the reference."""
        row = meter.row(beside=reference, batch=batch, sync_delay_ms=self.delay_s * 1000)
        reached = reference.per_second()
        if not self.delay_s and reached < REFERENCE_MIN[batch]:
            row.void = f"the reference reached only {reached:,.0f} messages/s by {batch}"
        return row


class ClaimingWorker:
    """Claims as a worker does: the last messages acknowledged and the next claimed in one commit."""

    def __init__(self, queue: Queue, batch: int) -> None:
        self._queue = queue
        self._batch = batch
        self._held: list[Message] = []

    def step(self) -> int:
        """Acknowledge the held messages, claim a batch, and return its size."""
        self._held = self._queue.claim(self._batch, ack=self._held)
        return len(self._held)
