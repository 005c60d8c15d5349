"""How messages come to consumers: routed, given a claim number, claimed for a while.

Rules over a transaction; a claim is the pair (claim id, attempt). How attempts end is in `endings`.
"""

from __future__ import annotations

from msgspec.structs import replace

from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.format.ids import bucket_of, split_id
from millstream.limits import CONSUMER_BYTES_MAX
from millstream.log.head import Head
from millstream.log.names import check_integer, check_text
from millstream.queue import commands as c
from millstream.queue.bucket import Bucket, Claimed, Placed
from millstream.queue.endings import end_attempts, expire, lease_ms_of, need_queue, parts_of
from millstream.queue.slots import Slots, Span
from millstream.queue.state import Counts, Moved, QueueState
from millstream.store.transaction import Transaction

CLAIM_MAX = 10_000


def claim(tx: Transaction, command: c.ClaimRouted) -> c.Granted:
    """Finish, route and claim, in one commit."""
    key, queue = need_queue(tx, command.queue)
    grants, expired = _claim(tx, key, queue, command)
    return c.Granted(grants, 0 if queue.paused else _untouched(queue), expired)


def _claim(
    tx: Transaction, key: bytes, queue: QueueState, command: c.ClaimRouted
) -> tuple[list[c.Grant], int]:
    if check_integer("a claim's count", command.count) > CLAIM_MAX:
        raise InvalidInput(f"a claim is for up to {CLAIM_MAX:,} messages, not {command.count:,}")
    if len(check_text("a consumer id", command.consumer).encode()) > CONSUMER_BYTES_MAX:
        raise InvalidInput(f"a consumer id has up to {CONSUMER_BYTES_MAX} bytes")
    if command.acked:
        end_attempts(tx, key, queue, list(parts_of(command.acked)), outcome="ack")
    for routed in command.routed:
        place(tx, key, queue, routed)
    expired = expire(tx, key, queue)
    if queue.paused or not command.count:
        return [], expired
    taken = _due(tx, queue, command.count)
    fresh = min(command.count - len(taken), _untouched(queue))
    parts = [(bucket_id, (slot, slot + 1)) for bucket_id, slot in taken]
    end = queue.fresh
    if fresh > 0:
        for bucket_id, (start, stop) in queue.pieces(queue.fresh, queue.next):
            stop = min(stop, start + fresh)
            parts.append((bucket_id, (start, stop)))
            fresh -= stop - start
            end = (bucket_id & ((1 << 60) - 1)) + stop
            if not fresh:
                break
    if not parts:
        return [], expired
    until_ms = tx.store_ms + lease_ms_of(queue, command.lease_ms)
    grants, moved = _take(tx, queue, parts, until_ms=until_ms, consumer=command.consumer)
    moved.counts.waiting = -len(taken)
    tx.change(key, replace(moved, fresh=end))
    if command.pop:
        popped = [(grant.claim_id, grant.count, grant.attempt) for grant in grants]
        end_attempts(tx, key, queue, list(parts_of(popped)), outcome="ack")
    return grants, expired


def _untouched(queue: QueueState) -> int:
    return sum(stop - start for _, (start, stop) in queue.pieces(queue.fresh, queue.next))


def _due(tx: Transaction, queue: QueueState, most: int) -> list[tuple[int, int]]:
    """Messages whose retry or delay is over: taken off the list of those that wait."""
    if not queue.counts.waiting:
        return []
    start = keys.retry(queue.queue_id, 0, 0)
    stop = keys.retry(queue.queue_id, tx.store_ms + 1, 0)
    found = []
    for key, _ in tx.state.scan(start, stop, tx.writer, limit=most):
        tx.drop(key)
        claim_id = keys.retry_claim(key)[1]
        bucket_id = bucket_of(claim_id)
        found.append((bucket_id, split_id(claim_id)[1] - split_id(bucket_id)[1]))
    return found


def _take(
    tx: Transaction,
    queue: QueueState,
    parts: list[tuple[int, Slots]],
    *,
    until_ms: int,
    consumer: str,
) -> tuple[list[c.Grant], Moved]:
    """Claim slots; answers what was granted, and how the queue moves by it."""
    grants: list[c.Grant] = []
    busy = []
    total = 0
    for bucket_id, (start, stop) in parts:
        bucket_key = keys.bucket(queue.queue_id, bucket_id)
        tx.change(bucket_key, Claimed([(start, stop)], tx.store_ms, until_ms, consumer))
        bucket = tx.entity(bucket_key, Bucket)
        busy.append((bucket_id, min(queue.busy.get(bucket_id, until_ms), until_ms)))
        total += stop - start
        for span in bucket.sources(start, stop):
            grants.append(
                c.Grant(
                    queue.claim_id(bucket_id, span.slot),
                    span.count,
                    bucket.attempts[span.slot],
                    span.log_id,
                    span.offset,
                    until_ms,
                )
            )
    return grants, Moved(counts=Counts(available=-total, in_flight=total), busy=busy)


def place(tx: Transaction, key: bytes, queue: QueueState, routed: c.Routed) -> None:
    """Give claim numbers to what was routed, if nobody has routed the same meanwhile."""
    dropped = tx.entity(keys.head(routed.log_id), Head).dropped
    if max(queue.positions.get(routed.log_id, 0), dropped) != routed.start:
        return
    first = queue.next
    total = sum(span.count for span in routed.spans)
    spans = iter(routed.spans)
    left: Span | None = next(spans, None)
    delayed = queue.spec.delay_ms
    alive = []
    freed = _free_untouched(tx, queue) if delayed else 0
    for bucket_id, (start, stop) in queue.pieces(first, first + total):
        alive.append((bucket_id, stop - start))
        placed = []
        slot = start
        while left is not None and slot < stop:
            count = min(left.count, stop - slot)
            placed.append(Span(slot, count, left.log_id, left.offset, left.message_id))
            slot += count
            left = (
                Span(
                    0, left.count - count, left.log_id, left.offset + count, left.message_id + count
                )
                if left.count > count
                else next(spans, None)
            )
        tx.change(keys.bucket(queue.queue_id, bucket_id), Placed(queue.name, placed))
        if delayed:
            for number in range(start, stop):
                due_ms = tx.store_ms + delayed
                tx.put(keys.retry(queue.queue_id, due_ms, queue.claim_id(bucket_id, number)), b"")
    tx.change(
        key,
        Moved(
            counts=Counts(available=total, waiting=total + freed if delayed else 0),
            next=first + total,
            fresh=first + total if delayed else -1,
            positions=[(routed.log_id, routed.stop)],
            alive=alive,
        ),
    )


def _free_untouched(tx: Transaction, queue: QueueState) -> int:
    """Let what is routed and untouched be claimed by its due time, now, instead of in turn."""
    total = 0
    for bucket_id, (start, stop) in queue.pieces(queue.fresh, queue.next):
        for slot in range(start, stop):
            tx.put(keys.retry(queue.queue_id, tx.store_ms, queue.claim_id(bucket_id, slot)), b"")
        total += stop - start
    return total
