"""Who has passed an offset: a queue that was routed beyond it has seen what is there."""

from __future__ import annotations

from millstream.format import keys
from millstream.queue.state import QueueState
from millstream.store.transaction import Transaction

QUEUES_PER_STEP = 1_000


def queue_past(tx: Transaction, log_id: int, offset: int) -> str | None:
    """A queue that was routed beyond an offset of a log, in words; None if there is none."""
    start, stop = keys.range_of(keys.prefix(keys.QUEUE))
    while found := tx.state.find(start, stop, tx.writer, limit=QUEUES_PER_STEP):
        for key in found:
            queue = tx.entity(key, QueueState)
            if queue.positions.get(log_id, 0) > offset:
                return f"queue {queue.name!r}"
        start = found[-1] + b"\x00"
    return None
