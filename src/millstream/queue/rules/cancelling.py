"""Cancelling: a message that waits ends before a consumer gets it.

A waiting message is listed once: by its number in a lane, by a row of the index, or behind the head
of its group. A message in flight cannot be cancelled, but its consumer can be asked to stop
(`cancel_requests`). (A delayed message of an ordered group has a lane and a row.) The commit removes the
message from its list and marks its slot. The queue remembers the slot as long as a done message.
"""

from __future__ import annotations

from msgspec import Struct

from millstream.errors import Conflict
from millstream.format import keys
from millstream.format.ids import bucket_of, split_id
from millstream.log.rules.operations import find_log
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.bucket_changes import Cancelled
from millstream.queue.model.cancel_requests import CancelRequests, CancelsNoted
from millstream.queue.model.group import Group
from millstream.queue.model.message import CancelOutcome
from millstream.queue.model.own_logs import place_of_put
from millstream.queue.model.queue_changes import Unlisted
from millstream.queue.model.slots import AVAILABLE, CANCELLED, GONE, IN_FLIGHT, NONE
from millstream.queue.rules.aging import note_cancelled
from millstream.queue.rules.endings import expire
from millstream.queue.rules.index import QUIET
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.waiting_rows import WaitingRow, find_delay, find_ready
from millstream.store.commit.transaction import WriteTransaction

REQUESTS_PER_LOOK = 64
"""The number of open cancel requests at which requests of ended attempts are dropped."""


class PlacedMessage(Struct, frozen=True):
    """A message in its slot, and the record from which the message was made."""

    claim_id: int
    log_id: int
    offset: int


def cancel_placed(
    tx: WriteTransaction, queue: str, message: PlacedMessage, *, running: bool = False
) -> CancelOutcome | None:
    """Cancel a message that waits, and return True; also for a message that is cancelled already.

    Returns False for a message that is in flight or has ended, and None if the slot does not hold the
    message any more. With `running`, the consumer of a message in flight is asked to stop.
    """
    _take_back_expired(tx, queue)
    ledger = Ledger(tx, queue)
    bucket_id = bucket_of(message.claim_id)
    slot, bucket = message.claim_id - bucket_id, ledger.bucket(bucket_id)
    state = bucket.states[slot] if slot < len(bucket.states) else NONE
    if state in (NONE, GONE):
        return None
    (span,) = bucket.sources(slot, slot + 1)
    if (span.log_id, span.offset) != (message.log_id, message.offset):
        return None
    if state == IN_FLIGHT and running:
        _request(ledger, message.claim_id)
        return "requested"
    if state != AVAILABLE:
        return state == CANCELLED
    note_cancelled(tx, ledger.queue.queue_id, bucket_id, bucket)
    _unlist(ledger, bucket, message.claim_id)
    ledger.change_bucket(bucket_id, Cancelled([(slot, slot + 1)], tx.store_ms))
    ledger.counts.available -= 1
    ledger.change_alive(bucket_id, -1)
    ledger.close()
    return True


def cancel_waiting(tx: WriteTransaction, queue: str, id: int, claim_id: int) -> None:
    """Cancel a message that waits; raise `Conflict` for a message in any other state."""
    bucket_id = bucket_of(claim_id)
    bucket, slot = Ledger(tx, queue).bucket(bucket_id), claim_id - bucket_id
    was_cancelled = slot < len(bucket.states) and bucket.states[slot] == CANCELLED
    log, offset = place_of_put(queue, id)
    named_log = find_log(tx, log)
    if named_log is not None and not was_cancelled:
        message = PlacedMessage(claim_id, named_log[0], offset)
        if cancel_placed(tx, queue, message):
            return
    raise not_waiting(queue, id, claim_id)


def not_waiting(queue: str, id: int, claim_id: int | None) -> Conflict:
    """Return the error for a message that cannot be cancelled."""
    return Conflict(
        f"message {id} of queue {queue!r} does not wait any more, so it cannot be cancelled: it is in "
        "flight, has ended, or is forgotten; look at the queue again",
        name=queue,
        claim_id=claim_id,
    )


def _request(ledger: Ledger, claim_id: int) -> None:
    """Ask the consumer of a message in flight to stop. Requests of ended attempts go now and then."""
    tx, key = ledger.tx, keys.cancels(ledger.queue.queue_id)
    requests = tx.entity(key, CancelRequests)
    if claim_id in requests.claims:
        return
    over: list[int] = []
    if len(requests.claims) % REQUESTS_PER_LOOK == REQUESTS_PER_LOOK - 1:
        over = [open_id for open_id in requests.claims if not is_in_flight(ledger, open_id)]
    tx.change(key, CancelsNoted([claim_id], over))


def is_in_flight(ledger: Ledger, claim_id: int) -> bool:
    """Return whether a claim id names a message in flight."""
    bucket_id = bucket_of(claim_id)
    slot, bucket = claim_id - bucket_id, ledger.bucket(bucket_id)
    return slot < len(bucket.states) and bucket.states[slot] == IN_FLIGHT


def _take_back_expired(tx: WriteTransaction, queue: str) -> None:
    """Make messages with an expired lease wait again, in changes of their own."""
    ledger = Ledger(tx, queue)
    if any(until_ms <= tx.store_ms for until_ms in ledger.queue.busy.values()):
        expire(ledger)
        ledger.close()


def _unlist(ledger: Ledger, bucket: Bucket, claim_id: int) -> None:
    """Remove a waiting message from its lane, its row or its group."""
    queue, counts = ledger.queue, ledger.counts
    number, slot = split_id(claim_id)[1], claim_id - bucket_of(claim_id)
    lanes = [
        (lane, number, number + 1)
        for lane, ranges in queue.lanes.items()
        if any(start <= number < stop for start, stop in ranges)
    ]
    group = bucket.mark(slot)[1] if queue.spec.group_by else ""
    row = _row_of(ledger, bucket, claim_id, group, in_lane=bool(lanes))
    if row is not None:
        _shorten(ledger.tx, row, claim_id)
        setattr(counts, row.kind, getattr(counts, row.kind) - 1)
    if group and not lanes:
        ledger.index.withdraw(group, {claim_id}, 0)
    counts.fresh -= len(lanes)
    ledger.tx.change(ledger.key, Unlisted(1, lanes))


def _row_of(
    ledger: Ledger, bucket: Bucket, claim_id: int, group: str, *, in_lane: bool
) -> WaitingRow | None:
    """Return the row that lists a waiting message; None for a lane, or behind the head of a group."""
    tx, queue, slot = ledger.tx, ledger.queue, claim_id - bucket_of(claim_id)
    due_ms, epoch_ms = bucket.until_ms[slot], tx.state.time.epoch_ms()
    if in_lane:
        is_delayed = due_ms > tx.store_ms
        return find_delay(tx, queue, claim_id, due_ms, 0, exact=True) if is_delayed else None
    rank = QUIET, ledger.index.rank(bucket.mark(slot)[0], bucket.arrived_ms(slot))
    if group:
        if tx.get(keys.member(queue.queue_id, group, claim_id)) is not None:
            return None
        standing = tx.entity(keys.group(queue.queue_id, group), Group).standing
        if standing.head == claim_id and standing.rank is not None:
            rank = standing.rank
    for exact in (True, False):
        row = find_ready(tx, queue, claim_id, rank, exact=exact) or find_delay(
            tx, queue, claim_id, due_ms, epoch_ms, exact=exact
        )
        if row is not None:
            return row
    return None


def _shorten(tx: WriteTransaction, row: WaitingRow, claim_id: int) -> None:
    """Remove a message from its row; its neighbours stay listed, in up to two rows."""
    tx.erase(row.key)
    for first, stop in ((row.first, claim_id), (claim_id + 1, row.first + row.count)):
        if first < stop:
            size = keys.run_value(stop - first, full=row.kind == "ready")
            tx.put(keys.with_claim(row.key, first), size + row.value[4:])
