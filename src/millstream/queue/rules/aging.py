"""Aging: deletes done messages past the retention of their queue, and then their buckets.

Cancelled messages age as done messages do. A bucket with done messages has a row under the time of
its oldest done message, so that expired messages are found without reading the remaining buckets.
An emptied bucket has a row under the time of its last acknowledgement: a repeated acknowledgement
succeeds for a while, whatever the retention.
"""

from __future__ import annotations

from millstream.format import keys
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.bucket_changes import Forgot
from millstream.queue.model.counts import Counts
from millstream.queue.model.queue_changes import Moved
from millstream.queue.model.slots import CANCELLED, DONE, FORGOTTEN, Slots
from millstream.queue.model.state import QueueState
from millstream.queue.rules.notes import drop_notes
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View

HAS_DONE, EMPTIED = range(2)
"""The stages of a bucket: a message is done; the bucket has no needed message."""

REPEATS_MS = 10 * 60 * 1000
"""The shortest time for which an acknowledgement can be repeated, whatever the retention."""

STEP_MS = 15_000
"""The shortest time between two visits to a bucket whose messages are done one by one."""

BUCKETS_PER_COMMIT = 20


def note_done(tx: WriteTransaction, queue_id: int, bucket_id: int, bucket: Bucket) -> None:
    """List a bucket before its first message is done."""
    if not bucket.any_are(DONE):
        tx.put(keys.aging(queue_id, HAS_DONE, tx.store_ms, bucket_id), b"")


def note_cancelled(tx: WriteTransaction, queue_id: int, bucket_id: int, bucket: Bucket) -> None:
    """List a bucket before its first message is cancelled, unless done messages list it."""
    if not (bucket.any_are(DONE) or bucket.any_are(CANCELLED)):
        tx.put(keys.aging(queue_id, HAS_DONE, tx.store_ms, bucket_id), b"")


def note_removed(tx: WriteTransaction, queue_id: int, bucket_id: int) -> None:
    """List a bucket after messages were removed, because it may be empty."""
    tx.put(keys.aging(queue_id, EMPTIED, tx.store_ms, bucket_id), b"")


def is_due(view: View, queue: QueueState, now_ms: int) -> bool:
    """Return whether a queue has expired messages or buckets."""
    return any(
        view.scan(*_range(queue, stage, through_ms), limit=1)
        for stage, through_ms in _due(queue, now_ms)
    )


def forget(tx: WriteTransaction, queue: QueueState) -> bool:
    """Delete expired messages of a few buckets; return True if more may follow."""
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
    """Return the stages with the time through which each has expired."""
    retention_ms = queue.spec.done_retention_s * 1000
    stages = [(EMPTIED, now_ms - REPEATS_MS)]
    return [(HAS_DONE, now_ms - retention_ms), *stages] if retention_ms else stages


def _range(queue: QueueState, stage: int, through_ms: int) -> tuple[bytes, bytes]:
    start = keys.aging(queue.queue_id, stage, 0, 0)
    return start, keys.aging(queue.queue_id, stage, max(0, through_ms + 1), 0)


def _forget_done(tx: WriteTransaction, queue: QueueState, bucket_id: int, through_ms: int) -> int:
    """Forget the messages of a bucket that ended long enough ago; return the number of done ones."""
    key = keys.bucket(queue.queue_id, bucket_id)
    bucket = tx.entity(key, Bucket)
    done_slots = bucket.ended_through(through_ms, DONE)
    cancelled_slots = bucket.ended_through(through_ms, CANCELLED)
    done, cancelled = _size(done_slots), _size(cancelled_slots)
    if done or cancelled:
        drop_notes(tx, queue.queue_id, bucket_id, done_slots)
        drop_notes(tx, queue.queue_id, bucket_id, cancelled_slots)
        tx.change(key, Forgot(through_ms))
    times_ms = [bucket.first_ms(DONE), bucket.first_ms(CANCELLED)]
    oldest_ms = min((time_ms for time_ms in times_ms if time_ms is not None), default=None)
    last_ms = bucket.last_ms(FORGOTTEN)
    if oldest_ms is not None:
        again_ms = max(oldest_ms, through_ms + STEP_MS)
        tx.put(keys.aging(queue.queue_id, HAS_DONE, again_ms, bucket_id), b"")
    elif last_ms is not None:
        tx.put(keys.aging(queue.queue_id, EMPTIED, last_ms, bucket_id), b"")
    elif cancelled:
        note_removed(tx, queue.queue_id, bucket_id)
    return done


def _size(ranges: list[Slots]) -> int:
    """Return the number of slots in ranges."""
    return sum(stop - start for start, stop in ranges)


def _forget_bucket(
    tx: WriteTransaction, queue: QueueState, bucket_id: int, through_ms: int
) -> None:
    """Delete an empty bucket that gets no new messages, after the time for repeats is over.

    A bucket that must stay is listed again by its next change.
    """
    key = keys.bucket(queue.queue_id, bucket_id)
    bucket = tx.entity(key, Bucket)
    if bucket_id in queue.alive or bucket_id in queue.filling():
        return
    if bucket.any_are(DONE) or bucket.any_are(CANCELLED):
        return
    last_ms = bucket.last_ms(FORGOTTEN)
    if last_ms is not None and last_ms > through_ms:
        tx.put(keys.aging(queue.queue_id, EMPTIED, last_ms, bucket_id), b"")
    elif bucket.exists():
        tx.change(key, None)
