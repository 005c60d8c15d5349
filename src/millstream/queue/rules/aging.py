"""Aging: when the done messages of a queue are forgotten, and their buckets after them.

A bucket with done messages is listed by a row under the time of the oldest, so that what is over is
found without looking at the others. Once nothing in a bucket is of interest, it is listed under the
time of its last acknowledgement: a repeat of that succeeds for a while, whatever the retention.
"""

from __future__ import annotations

from millstream.format import keys
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.bucket_changes import Forgot
from millstream.queue.model.counts import Counts
from millstream.queue.model.queue_changes import Moved
from millstream.queue.model.slots import DONE, FORGOTTEN
from millstream.queue.model.state import QueueState
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View

HAS_DONE, EMPTIED = range(2)
"""The stages: some messages are done; nothing is left that is of interest."""

REPEATS_MS = 10 * 60 * 1000
"""How long an acknowledgement can be repeated at least, whatever the retention."""

STEP_MS = 15_000
"""A bucket in which messages are done one by one is not looked at more often."""

BUCKETS_PER_COMMIT = 20


def note_done(tx: WriteTransaction, queue_id: int, bucket_id: int, bucket: Bucket) -> None:
    """Before messages of a bucket are done: list it, if none was yet."""
    if not bucket.any_are(DONE):
        tx.put(keys.aging(queue_id, HAS_DONE, tx.store_ms, bucket_id), b"")


def note_removed(tx: WriteTransaction, queue_id: int, bucket_id: int) -> None:
    """After messages of a bucket were removed: perhaps it holds nothing any more."""
    tx.put(keys.aging(queue_id, EMPTIED, tx.store_ms, bucket_id), b"")


def is_due(view: View, queue: QueueState, now_ms: int) -> bool:
    """Whether there is something to forget in a queue."""
    return any(
        view.scan(*_range(queue, stage, through_ms), limit=1)
        for stage, through_ms in _due(queue, now_ms)
    )


def forget(tx: WriteTransaction, queue: QueueState) -> bool:
    """Forget what is over, in a few buckets; True if there may be more."""
    key, total, looked_at = keys.queue(queue.name), 0, 0
    for stage, through_ms in _due(queue, tx.store_ms):
        for row, _ in tx.scan(*_range(queue, stage, through_ms), limit=BUCKETS_PER_COMMIT):
            tx.erase(row)
            bucket_id = keys.aging_bucket(row)[3]
            looked_at += 1
            if stage == HAS_DONE:
                total += _forget_done(tx, queue, bucket_id, through_ms)
            else:
                _forget_bucket(tx, queue, bucket_id, through_ms)
    if total:
        tx.change(key, Moved(tx.store_ms, Counts(done=-total)))
    return looked_at > 0


def _due(queue: QueueState, now_ms: int) -> list[tuple[int, int]]:
    """The stages, and which times are over in each."""
    kept_ms = queue.spec.done_retention_s * 1000
    stages = [(EMPTIED, now_ms - REPEATS_MS)]
    return [(HAS_DONE, now_ms - kept_ms), *stages] if kept_ms else stages


def _range(queue: QueueState, stage: int, through_ms: int) -> tuple[bytes, bytes]:
    start = keys.aging(queue.queue_id, stage, 0, 0)
    return start, keys.aging(queue.queue_id, stage, max(0, through_ms + 1), 0)


def _forget_done(tx: WriteTransaction, queue: QueueState, bucket_id: int, through_ms: int) -> int:
    """Forget what of a bucket was done long enough ago; how many messages."""
    key = keys.bucket(queue.queue_id, bucket_id)
    bucket = tx.entity(key, Bucket)
    count = sum(stop - start for start, stop in bucket.done_through(through_ms))
    if count:
        tx.change(key, Forgot(through_ms))
    oldest_ms, last_ms = bucket.first_ms(DONE), bucket.last_ms(FORGOTTEN)
    if oldest_ms is not None:
        again_ms = max(oldest_ms, through_ms + STEP_MS)
        tx.put(keys.aging(queue.queue_id, HAS_DONE, again_ms, bucket_id), b"")
    elif last_ms is not None:
        tx.put(keys.aging(queue.queue_id, EMPTIED, last_ms, bucket_id), b"")
    return count


def _forget_bucket(
    tx: WriteTransaction, queue: QueueState, bucket_id: int, through_ms: int
) -> None:
    """Forget a bucket that holds nothing and gets nothing, once its last repeats are over.

    One that does not go now is listed again by what changes it.
    """
    key = keys.bucket(queue.queue_id, bucket_id)
    bucket = tx.entity(key, Bucket)
    if bucket_id in queue.alive or bucket_id in queue.filling() or bucket.any_are(DONE):
        return
    last_ms = bucket.last_ms(FORGOTTEN)
    if last_ms is not None and last_ms > through_ms:
        tx.put(keys.aging(queue.queue_id, EMPTIED, last_ms, bucket_id), b"")
    elif bucket.exists():
        tx.change(key, None)
