"""Operations on a queue: specify, alter, pause, purge, redrive, delete."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import msgspec
from msgspec.structs import fields, replace

from millstream.errors import Conflict, InvalidInput
from millstream.format import keys
from millstream.format.encodings import encode_u64
from millstream.format.ids import bucket_of, capacity_of, capacity_of_id
from millstream.log.commands import DeleteLog
from millstream.log.model.head import Head
from millstream.log.model.names import NUMBER_MAX, check_name
from millstream.log.rules import operations as logs
from millstream.queue import commands as c
from millstream.queue.model.alteration import check_alteration, check_changes, check_dead_letter
from millstream.queue.model.attempts import trials_of
from millstream.queue.model.backoff import Backoff
from millstream.queue.model.bucket_changes import Removed
from millstream.queue.model.counts import Counts
from millstream.queue.model.group import NO_STANDING, Group, GroupStanding
from millstream.queue.model.own_logs import later_of, own_logs
from millstream.queue.model.queue_changes import Moved, Paused, Specified
from millstream.queue.model.roster import Rostered
from millstream.queue.model.slots import AVAILABLE, FAILED, Trial
from millstream.queue.model.spec import RATE_MAX, RATE_MIN, QueueSpec
from millstream.queue.model.state import QueueState
from millstream.queue.rules.aging import note_removed
from millstream.queue.rules.change_log import prepare
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.notes import drop_notes, take_note
from millstream.queue.rules.partitions import with_partitions
from millstream.queue.rules.placement import Arrival, admit
from millstream.queue.rules.sources import find_sources
from millstream.queue.rules.start import (
    check_sources,
    check_start,
    check_time,
    first_offset,
)
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View

T = TypeVar("T", QueueSpec, Backoff)
_INDEXES = (
    keys.RETRY,
    keys.SCHEDULE,
    keys.READY,
    keys.MEMBER,
    keys.SEEN,
    keys.SEEN_UNTIL,
    keys.LETTER,
    keys.AGING,
)
BUCKETS_PER_DELETION = 100
ROWS_PER_DELETION = 1_000
"""The most rows of each type that a commit deletes of a queue."""


def checked(spec: QueueSpec) -> QueueSpec:
    """Return a spec with checked types and values, as a later decode returns it."""
    for name in spec.__struct_fields__:
        number = getattr(spec, name)
        if type(number) is int and abs(number) > NUMBER_MAX:
            raise InvalidInput(f"{name} is far too large a number: {number}")
    try:
        typed = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=QueueSpec)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"a queue cannot be specified like that: {error}") from error
    typed.check()
    return _lean(replace(typed, backoff=_lean(typed.backoff)))


def _lean(value: T) -> T:
    """Return the value without fields that equal their defaults."""
    values = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
    return type(value)(
        **{name: value for name, (value, default) in values.items() if value != default}
    )


def specify(tx: WriteTransaction, command: c.SpecifyQueue) -> bool:
    """Make a queue, or replace its spec; return True for a new queue."""
    check_name(command.queue, "queue")
    spec = with_partitions(tx, checked(command.spec))
    check_dead_letter(command.queue, spec)
    check_changes(command.queue, spec)
    key = keys.queue(command.queue)
    queue = tx.entity(key, QueueState)
    if queue.exists():
        if spec.changes and spec.changes != queue.spec.changes:
            prepare(tx, spec.changes)
        _alter(tx, key, queue, spec, command.expect)
        return False
    if command.expect is not None:
        raise Conflict(f"there is no queue {command.queue!r} to alter", name=command.queue)
    if spec.changes:
        prepare(tx, spec.changes)
    first = _free_from(tx, capacity_of(spec.bucket_exponent))
    tx.change(key, Specified(tx.take_entity_id(), command.queue, spec, tx.wall_ms, first))
    _start(tx, key, queue)
    return True


def _free_from(tx: WriteTransaction, capacity: int) -> int:
    """Return the first claim number that no deleted queue has given out.

    So a claim of a deleted queue never names a message of a new queue with the same name.
    """
    stored = tx.get(keys.CLAIMS_KEY)
    return 0 if stored is None else -(-int.from_bytes(stored, "little") // capacity) * capacity


def _give_up(tx: WriteTransaction, queue: QueueState) -> None:
    """Remember the claim numbers of a deleted queue, so that no later queue gives them out again."""
    if queue.next > _free_from(tx, 1):
        tx.put(keys.CLAIMS_KEY, encode_u64(queue.next))


def _alter(
    tx: WriteTransaction, key: bytes, queue: QueueState, new: QueueSpec, expect: QueueSpec | None
) -> None:
    old = queue.spec
    if expect is not None and old != expect:
        raise Conflict(
            f"queue {queue.name!r} was altered meanwhile; look at its spec and alter it again",
            name=queue.name,
        )
    if old == new:
        return
    counts = queue.counts
    check_alteration(queue.name, old, new, available=counts.available, in_flight=counts.in_flight)
    numbers_from = queue.next
    if old.bucket_exponent != new.bucket_exponent:
        for bucket_id in queue.filling():
            note_removed(tx, queue.queue_id, bucket_id)
        capacity = capacity_of(max(old.bucket_exponent, new.bucket_exponent))
        numbers_from = -(-queue.next // capacity) * capacity
    old_sources = set(find_sources(tx.view, queue.name, old))
    tx.change(key, Specified(queue.queue_id, queue.name, new, queue.created_ms, numbers_from))
    _start(tx, key, queue, old_sources=old_sources)


def _start(
    tx: WriteTransaction, key: bytes, queue: QueueState, old_sources: Collection[int] | None = None
) -> None:
    """Set the routing position in existing logs that are new to the queue.

    `old_sources` has the sources of an altered queue before the change. `start` only applied to them.
    """
    positions = []
    log_ids = find_sources(tx.view, queue.name, queue.spec)
    if old_sources is None:
        check_time(queue.spec, tx.wall_ms)
        check_sources(queue.spec, [tx.entity(keys.head(log_id), Head).name for log_id in log_ids])
    for log_id in log_ids:
        if old_sources is not None and log_id in old_sources:
            continue
        head = tx.entity(keys.head(log_id), Head)
        if old_sources is None and head.name not in own_logs(queue.name):
            check_start(head, queue.spec)
        is_later = head.name == later_of(queue.name)  # its messages were deleted with their queue
        positions.append(
            (log_id, head.end if is_later else first_offset(tx, log_id, head, queue.spec))
        )
    if positions:
        tx.change(key, Moved(tx.store_ms, positions=positions))


def pause(tx: WriteTransaction, command: c.PauseQueue) -> None:
    """Pause claims, or resume them."""
    ledger = Ledger(tx, command.queue)
    if ledger.queue.paused != command.paused:
        tx.change(ledger.key, Paused(command.paused))


def purge(tx: WriteTransaction, command: c.PurgeQueue) -> int:
    """Delete available or failed messages; messages in flight stay.

    Unrouted records in the logs count as available and are skipped as well.
    """
    ledger = Ledger(tx, command.queue)
    key, queue = ledger.key, ledger.queue
    states = {"available": AVAILABLE, "failed": FAILED}
    if command.state not in states:
        raise InvalidInput(f"available or failed messages can be purged, not {command.state!r}")
    state = states[command.state]
    total = 0
    alive = []
    for bucket_id in sorted(queue.alive):
        if slots := list(ledger.bucket(bucket_id).runs(state)):
            ledger.change_bucket(bucket_id, Removed(slots))
            drop_notes(tx, queue.queue_id, bucket_id, slots)
            gone = sum(stop - start for start, stop in slots)
            alive.append((bucket_id, -gone))
            note_removed(tx, queue.queue_id, bucket_id)
            total += gone
    ledger.close()
    if state == FAILED:
        tx.change(key, Moved(tx.store_ms, Counts(failed=-total), alive=alive))
        return total
    for kind in (keys.RETRY, keys.SCHEDULE, keys.READY, keys.MEMBER):
        tx.drop_all(*keys.of_queue(kind, queue.queue_id))
    _empty_groups(tx, queue)
    stored = queue.counts
    counts = Counts(
        available=-total,
        waiting=-stored.waiting,
        scheduled=-stored.scheduled,
        ready=-stored.ready,
        fresh=-stored.fresh,
    )
    lane_advances = [
        (lane, sum(stop - start for start, stop in ranges)) for lane, ranges in queue.lanes.items()
    ]
    positions = []
    for log_id in find_sources(tx.view, queue.name, queue.spec):
        head = tx.entity(keys.head(log_id), Head)
        position = queue.positions.get(log_id, 0)
        total += head.count(head.next_at(position), head.end)
        if position < head.end:
            positions.append((log_id, head.end))
    moved = Moved(
        tx.store_ms, counts, lane_advances=lane_advances, alive=alive, positions=positions
    )
    tx.change(key, moved)
    return total


def _empty_groups(tx: WriteTransaction, queue: QueueState) -> None:
    """Remove the waiting messages of every group; messages in flight stay."""
    closed = []
    for group_key in tx.view.find_all(*keys.of_queue(keys.GROUP, queue.queue_id)):
        now = tx.entity(group_key, Group).standing
        empty = GroupStanding(paid_until_ms=now.paid_until_ms)
        if now != empty:
            tx.change(group_key, empty)
            if empty == NO_STANDING:
                closed.append(keys.trailing_name(group_key))
    if closed:
        tx.change(keys.roster(queue.queue_id), Rostered(closed=closed))


def redrive(tx: WriteTransaction, command: c.RedriveClaims) -> int:
    """Make failed messages available again, under new claim ids and without attempts."""
    ledger = Ledger(tx, command.queue)
    if command.rate is not None and not RATE_MIN <= command.rate <= RATE_MAX:
        raise InvalidInput(f"a rate is a number of messages per second, not {command.rate}")
    chosen: list[Arrival] = []
    histories: dict[int, list[list[Trial]]] = {}
    for claim_id in command.claims:
        bucket_id = bucket_of(claim_id)
        slot = claim_id - bucket_id
        bucket = ledger.bucket(bucket_id)
        if bucket_id not in histories:
            histories[bucket_id] = trials_of(bucket, 0, len(bucket.states))
        if slot >= len(bucket.states) or bucket.states[slot] != FAILED:
            continue
        (span,) = bucket.sources(slot, slot + 1)
        due_ms = 0
        if command.rate:
            due_ms = tx.store_ms + int((command.before + len(chosen)) * 1000 / command.rate)
        past = histories[bucket_id][slot]
        note = take_note(tx, ledger.queue.queue_id, claim_id)
        chosen.append(
            Arrival(replace(span, slot=0), *bucket.mark(slot), due_ms, past=past, note=note)
        )
        ledger.change_bucket(bucket_id, Removed([(slot, slot + 1)]))
        ledger.change_alive(bucket_id, -1)
        ledger.counts.failed -= 1
    for bucket_id in histories:
        note_removed(tx, ledger.queue.queue_id, bucket_id)
    total = admit(ledger, chosen)
    ledger.close()
    return total


def delete(tx: WriteTransaction, command: c.DeleteQueue) -> bool:
    """Delete a queue with its messages and inbox; its sources stay.

    Rows of a large queue that nothing refers to any more are left to the upkeep.
    """
    key = keys.queue(command.queue)
    queue = tx.entity(key, QueueState)
    if not queue.exists():
        return False
    if _delete_some(tx, queue.queue_id):
        tx.put(keys.remains(queue.queue_id), b"")
    for log in own_logs(queue.name):
        logs.delete_log(tx, DeleteLog(log))
    _give_up(tx, queue)
    tx.change(key, None)
    return True


def delete_remains(tx: WriteTransaction) -> bool:
    """Delete some remaining rows of deleted queues; return True if more may follow."""
    for key, _ in tx.scan(*keys.of_log(keys.REMAINS, 0), limit=1):
        if not _delete_some(tx, keys.pair(key)[1]):
            tx.erase(key)
        return True
    return False


def has_remains(view: View) -> bool:
    """Whether a deleted queue has rows left."""
    return bool(view.scan(*keys.of_log(keys.REMAINS, 0), limit=1))


def _delete_some(tx: WriteTransaction, queue_id: int) -> bool:
    """Delete some rows of a queue that is deleted; True if more are left."""
    has_more = False
    for kind, limit in (
        (keys.BUCKET, BUCKETS_PER_DELETION),
        (keys.GROUP, ROWS_PER_DELETION),
        (keys.ROSTER, ROWS_PER_DELETION),
        (keys.CANCELS, ROWS_PER_DELETION),
        (keys.GROUP_LIMITS, ROWS_PER_DELETION),
    ):
        page = tx.view.find(*keys.of_queue(kind, queue_id), limit=limit)
        for key in page:
            if kind == keys.BUCKET:
                bucket_id = keys.pair(key)[1]
                drop_notes(tx, queue_id, bucket_id, [(0, capacity_of_id(bucket_id))])
            tx.change(key, None)
        has_more = has_more or len(page) == limit
    for kind in _INDEXES:
        has_more = tx.drop_some(*keys.of_queue(kind, queue_id), limit=ROWS_PER_DELETION) or has_more
    return has_more
