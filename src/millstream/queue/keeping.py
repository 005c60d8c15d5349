"""Keeping: what a queue still needs of its logs, and what it may forget of its own.

The bytes of a log stay until every queue on it has passed them: until they are routed and the
messages are done. Done messages are forgotten, bucket by bucket, after their retention.
"""

from __future__ import annotations

from functools import partial

from millstream.format import keys, rfc
from millstream.queue.bucket import Bucket
from millstream.queue.endings import expire
from millstream.queue.routing import inbox_of
from millstream.queue.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT
from millstream.queue.state import Counts, Moved, QueueState
from millstream.store.engine import Snapshot
from millstream.store.state import State
from millstream.store.store import Store
from millstream.store.transaction import Transaction

QUEUES_MAX = 10_000
BUCKETS_FORGOTTEN_PER_COMMIT = 20


def pin(state: State, snapshot: Snapshot, log_id: int) -> int | None:
    """The first offset of a log that some queue still needs; None if no queue takes from it."""
    start = keys.prefix(keys.QUEUE)
    needed = []
    for key in state.find(start, keys.after(start), snapshot, limit=QUEUES_MAX):
        queue = state.entity(key, snapshot)
        assert isinstance(queue, QueueState)
        if log_id in queue.positions or _takes(state, snapshot, queue, log_id):
            needed.append(_needed(state, snapshot, queue, log_id))
    return min(needed, default=None)


def _takes(state: State, snapshot: Snapshot, queue: QueueState, log_id: int) -> bool:
    name = getattr(state.entity(keys.head(log_id), snapshot), "name", "")
    return name == inbox_of(queue.name) or queue.spec.takes_from(name)


def _needed(state: State, snapshot: Snapshot, queue: QueueState, log_id: int) -> int:
    """Where routing stands, or the first message that is not done, or not yet folded."""
    needed = queue.positions.get(log_id, 0)
    start, stop = keys.bucket(queue.queue_id, 0), keys.bucket(queue.queue_id + 1, 0)
    wanted = {key for key in state.dirty if start <= key < stop}
    wanted.update(keys.bucket(queue.queue_id, bucket_id) for bucket_id in queue.alive)
    for key in wanted:
        bucket = state.entity(key, snapshot)
        assert isinstance(bucket, Bucket)
        needed = min([needed, *(s.offset for s in bucket.spans if s.log_id == log_id)])
    return needed


class QueueUpkeep:
    """Takes back expired leases and forgets what was done long ago, queue by queue."""

    def __call__(self, store: Store) -> bool:
        """Look after every queue; True if one of them has more to do right now."""
        names = store.look(_names)
        return sum(self._tend(store, name) for name in names) > 0

    def _tend(self, store: Store, name: str) -> bool:
        if not store.look(lambda state, snapshot: _wants(state, snapshot, name)):
            return False
        more: bool = store.run(lambda tx: _keep(tx, name))
        return more


def _names(state: State, snapshot: Snapshot) -> list[str]:
    start = keys.prefix(keys.QUEUE)
    found = state.find(start, keys.after(start), snapshot, limit=QUEUES_MAX)
    return [key[2:].decode() for key in found]


def _wants(state: State, snapshot: Snapshot, name: str) -> bool:
    """Whether a lease has ended, or the oldest bucket is done with."""
    queue = state.entity(keys.queue(name), snapshot)
    assert isinstance(queue, QueueState)
    _, now_ms = state.time.now()
    if any(until_ms <= now_ms for until_ms in queue.busy.values()):
        return True
    over = _finished(state, snapshot, queue, limit=1)
    return bool(over) and _is_over(state.entity(over[0], snapshot), queue, now_ms)


def _finished(state: State, snapshot: Snapshot, queue: QueueState, *, limit: int) -> list[bytes]:
    """The oldest full buckets in which nothing is alive."""
    start, stop = keys.bucket(queue.queue_id, 0), keys.bucket(queue.queue_id + 1, 0)
    filling = _filling(queue)
    most = limit + len(queue.alive) + 1
    found = state.find(start, stop, snapshot, limit=most)
    numbers = [(int.from_bytes(key[10:], "big"), key) for key in found]
    return [key for one, key in numbers if one not in queue.alive and one != filling][:limit]


def _is_over(bucket: object, queue: QueueState, now_ms: int) -> bool:
    """Whether a bucket is full, nothing in it is alive, and the last was done long enough ago."""
    if not isinstance(bucket, Bucket) or not bucket.exists():
        return False
    if any(bucket.any_are(state) for state in (AVAILABLE, IN_FLIGHT, FAILED)):
        return False
    if not queue.spec.done_retention_s and bucket.any_are(DONE):
        return False
    return bool(max(bucket.until_ms) + queue.spec.done_retention_s * 1000 <= now_ms)


def _keep(tx: Transaction, name: str) -> bool:
    key = keys.queue(name)
    queue = tx.entity(key, QueueState)
    if not queue.exists():
        return False
    expire(tx, key, queue)
    forgotten = 0
    limit = BUCKETS_FORGOTTEN_PER_COMMIT
    for bucket_key in _finished(tx.state, tx.writer, queue, limit=limit):
        bucket = tx.entity(bucket_key, Bucket)
        bucket_id = int.from_bytes(bucket_key[10:], "big")
        if not _is_over(bucket, queue, tx.store_ms):
            break
        done = bucket.states.count(DONE)
        for span in bucket.spans:
            attempts = partial(rfc.attempts_key, queue.name.encode())
            tx.drop(attempts(span.message_id), attempts(span.message_id + span.count))
        for record in (rfc.done_key, rfc.active_key, rfc.failed_key):
            tx.drop(record(queue.name.encode(), bucket_id))
        tx.change(bucket_key, None)
        tx.change(key, Moved(counts=Counts(done=-done)))
        forgotten += 1
    return forgotten == BUCKETS_FORGOTTEN_PER_COMMIT


def _filling(queue: QueueState) -> int:
    """The bucket that the next claim number belongs to."""
    return next(iter(queue.pieces(queue.next, queue.next + 1)))[0]
