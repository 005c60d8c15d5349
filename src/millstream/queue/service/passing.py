"""Readers past an offset: a queue that was routed beyond it has seen what is there.

And what it has finished: a log that forgets what was consumed asks that of every queue on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.format import keys
from millstream.log.head import Head
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.slots import AVAILABLE, IN_FLIGHT
from millstream.queue.model.state import QueueState
from millstream.queue.service.keeping import goes_on_in
from millstream.store.rows import View
from millstream.store.state import NO_END
from millstream.store.transaction import Transaction

QUEUES_PER_STEP = 1_000


def queue_past(tx: Transaction, log_id: int, offset: int) -> str | None:
    """A queue that was routed beyond an offset of a log, in words; None if there is none."""
    for queue in _queues(tx.view):
        if queue.positions.get(log_id, 0) > offset:
            return f"queue {queue.name!r}"
    return None


def queues_passed(view: View, log_id: int) -> list[int]:
    """Up to where each queue on a log has passed it: what lies before is routed, and done or failed.

    A failed message does not hold its log: the queue keeps its bytes for as long as it needs them.
    """
    head = view.entity(keys.head(log_id), Head)
    floors = []
    for queue in _queues(view):
        floor = NO_END
        if goes_on_in(queue, head):
            floor = max(queue.positions.get(log_id, 0), head.start)
        if floor > head.start and log_id in queue.positions:
            floor = min(floor, _first_unfinished(view, queue, log_id, head.start))
        if floor < NO_END:
            floors.append(floor)
    return floors


def _queues(view: View) -> Iterator[QueueState]:
    start, stop = keys.range_of(keys.prefix(keys.QUEUE))
    while page := view.find(start, stop, limit=QUEUES_PER_STEP):
        for key in page:
            queue = view.entity(key, QueueState)
            yield queue
        start = page[-1] + b"\x00"


def _first_unfinished(view: View, queue: QueueState, log_id: int, start: int) -> int:
    """The first offset, from a log's start on, whose message waits or is in flight."""
    first = NO_END
    if not (queue.counts.available or queue.counts.in_flight):
        return first
    for bucket_id in queue.alive:
        bucket = view.entity(keys.bucket(queue.queue_id, bucket_id), Bucket)
        for one in (AVAILABLE, IN_FLIGHT):
            for run in bucket.runs(one):
                for span in bucket.sources(*run):
                    if span.log_id == log_id and span.offset + span.count > start:
                        first = min(first, max(span.offset, start))
        if first == start:
            break
    return first
