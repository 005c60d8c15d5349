"""What can be done to a queue as a whole: specify, alter, pause, purge, redrive, delete."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millstream.errors import Conflict, InvalidInput
from millstream.format import entries, keys, rfc
from millstream.format.ids import bucket_of, capacity_of, split_id
from millstream.log.head import Head
from millstream.log.names import check_name
from millstream.log.reader import entries_of
from millstream.queue import commands as c
from millstream.queue.bucket import Bucket, Placed, Removed
from millstream.queue.endings import need_queue
from millstream.queue.routing import find_sources
from millstream.queue.slots import AVAILABLE, FAILED, Slots, Span
from millstream.queue.spec import QueueSpec
from millstream.queue.state import Counts, Moved, Paused, QueueState, Specified
from millstream.store.transaction import Transaction

BUCKETS_PER_PURGE = 1_000
_FIXED = ("start", "start_ms")


def checked(spec: QueueSpec) -> QueueSpec:
    """A spec whose every field has its type and makes sense; it is decoded the same way later."""
    try:
        typed = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=QueueSpec)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"a queue cannot be specified like that: {error}") from error
    typed.check()
    return typed


def specify(tx: Transaction, command: c.SpecifyQueue) -> bool:
    """Make a queue, or alter one; True if it was made."""
    check_name(command.queue, "queue")
    spec = checked(command.spec)
    key = keys.queue(command.queue)
    queue = tx.entity(key, QueueState)
    if queue.exists():
        _alter(tx, key, queue, command)
        return False
    if command.expect is not None:
        raise Conflict(f"there is no queue {command.queue!r} to alter", name=command.queue)
    tx.change(key, Specified(tx.take_log_id(), command.queue, spec, tx.wall_ms, 0))
    _start(tx, key, queue)
    _put_empty(tx, queue)
    return True


def _alter(tx: Transaction, key: bytes, queue: QueueState, command: c.SpecifyQueue) -> None:
    old, new = queue.spec, command.spec
    if command.expect is None and old == new:
        return
    if command.expect is None or old != command.expect:
        raise Conflict(
            f"queue {command.queue!r} exists with another spec; alter it instead",
            name=command.queue,
        )
    for name in _FIXED:
        if getattr(old, name) != getattr(new, name):
            raise InvalidInput(f"{name} of a queue cannot be altered: routing has begun")
    numbers_from = queue.next
    if old.bucket_exponent != new.bucket_exponent:
        capacity = capacity_of(max(old.bucket_exponent, new.bucket_exponent))
        numbers_from = -(-queue.next // capacity) * capacity
    tx.change(key, Specified(queue.queue_id, queue.name, new, queue.created_ms, numbers_from))


def _start(tx: Transaction, key: bytes, queue: QueueState) -> None:
    """Set where routing begins in the logs that exist already."""
    positions = []
    for log_id in find_sources(tx.state, tx.writer, queue.name, queue.spec):
        head = tx.entity(keys.head(log_id), Head)
        positions.append((log_id, _first(tx, log_id, head, queue.spec)))
    if positions:
        tx.change(key, Moved(positions=positions))


def _first(tx: Transaction, log_id: int, head: Head, spec: QueueSpec) -> int:
    if spec.start_ms is not None:
        for first, value in entries_of(
            tx.state.overlay, tx.writer, log_id, start=head.start, stop=head.end
        ):
            for index, appended in enumerate(entries.decode(value).appended):
                if appended >= spec.start_ms and first + index >= head.start:
                    return first + index
        return head.end
    if spec.start == "latest":
        return head.end
    if spec.start == "earliest":
        return head.start
    return max(head.start, min(int(spec.start), head.end))


def _put_empty(tx: Transaction, queue: QueueState) -> None:
    """The RFC's empty records at the creation of a queue."""
    name = queue.name.encode()
    first = next(iter(queue.pieces(0, 1)))[0]
    tx.put(rfc.active_key(name, first), rfc.encode_active([], []))
    tx.put(rfc.done_key(name, first), rfc.encode_done([]))
    tx.put(rfc.failed_key(name, first), rfc.encode_failed([]))


def pause(tx: Transaction, command: c.PauseQueue) -> None:
    """Hold claims back, or stop doing so."""
    key, queue = need_queue(tx, command.queue)
    if queue.paused != command.paused:
        tx.change(key, Paused(command.paused))


def purge(tx: Transaction, command: c.PurgeQueue) -> int:
    """Forget available or failed messages; what is in flight is left alone.

    What waits in the logs, not yet routed, counts as available and is passed over as well.
    """
    key, queue = need_queue(tx, command.queue)
    states = {"available": AVAILABLE, "failed": FAILED}
    if command.state not in states:
        raise InvalidInput(f"available or failed messages can be purged, not {command.state!r}")
    state = states[command.state]
    total = 0
    alive = []
    for bucket_id, slots in list(_with(tx, queue, state)):
        tx.change(keys.bucket(queue.queue_id, bucket_id), Removed(slots))
        gone = sum(stop - start for start, stop in slots)
        alive.append((bucket_id, -gone))
        total += gone
    if state == FAILED:
        tx.change(key, Moved(counts=Counts(failed=-total), alive=alive))
        return total
    start, stop = keys.retry(queue.queue_id, 0, 0), keys.retry(queue.queue_id + 1, 0, 0)
    tx.drop(start, stop)
    waiting = queue.counts.waiting
    counts = Counts(available=-total, waiting=-waiting)
    positions = []
    for log_id in find_sources(tx.state, tx.writer, queue.name, queue.spec):
        head = tx.entity(keys.head(log_id), Head)
        total += max(0, head.end - max(queue.positions.get(log_id, 0), head.start))
        positions.append((log_id, head.end))
    tx.change(key, Moved(counts=counts, fresh=queue.next, alive=alive, positions=positions))
    return total


def _with(tx: Transaction, queue: QueueState, state: int) -> Iterator[tuple[int, list[Slots]]]:
    """The buckets that have slots in a state, with those slots."""
    for bucket_id in sorted(queue.alive):
        slots = list(tx.entity(keys.bucket(queue.queue_id, bucket_id), Bucket).runs(state))
        if slots:
            yield bucket_id, slots


def redrive(tx: Transaction, command: c.RedriveClaims) -> int:
    """Make failed messages available again, under new claim ids and with no attempts."""
    key, queue = need_queue(tx, command.queue)
    total = 0
    for claim_id in command.claims:
        bucket_id = bucket_of(claim_id)
        slot = split_id(claim_id)[1] - split_id(bucket_id)[1]
        bucket_key = keys.bucket(queue.queue_id, bucket_id)
        bucket = tx.entity(bucket_key, Bucket)
        if slot >= len(bucket.states) or bucket.states[slot] != FAILED:
            continue
        (span,) = bucket.sources(slot, slot + 1)
        tx.change(bucket_key, Removed([(slot, slot + 1)]))
        (again, (first, _)) = next(iter(queue.pieces(queue.next, queue.next + 1)))
        placed = Span(first, 1, span.log_id, span.offset, span.message_id)
        tx.change(keys.bucket(queue.queue_id, again), Placed(queue.name, [placed]))
        moved = Moved(
            counts=Counts(failed=-1, available=1),
            next=queue.next + 1,
            alive=[(bucket_id, -1), (again, 1)],
        )
        tx.change(key, moved)
        total += 1
    return total


def delete(tx: Transaction, command: c.DeleteQueue) -> bool:
    """Forget a queue and its messages; the logs stay."""
    key = keys.queue(command.queue)
    queue = tx.entity(key, QueueState)
    if not queue.exists():
        return False
    start, stop = keys.bucket(queue.queue_id, 0), keys.bucket(queue.queue_id + 1, 0)
    while page := tx.state.find(start, stop, tx.writer, limit=BUCKETS_PER_PURGE):
        for bucket_key in page:
            tx.change(bucket_key, None)
    name = queue.name.encode()
    for record in (
        rfc.RecordType.ACTIVE,
        rfc.RecordType.DONE,
        rfc.RecordType.FAILED,
        rfc.RecordType.ATTEMPTS,
    ):
        tx.drop(*keys.range_of(rfc.queue_prefix(record, name)))
    tx.drop(keys.retry(queue.queue_id, 0, 0), keys.retry(queue.queue_id + 1, 0, 0))
    tx.change(key, None)
    return True
