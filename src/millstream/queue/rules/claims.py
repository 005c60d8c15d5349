"""The rules of claims: choose messages, and lease them to a consumer.

A claim is named by the pair (claim id, attempt). The rules for the end of attempts are in
`endings`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from millstream.errors import CorruptionError, InvalidInput
from millstream.format import keys
from millstream.limits import CONSUMER_BYTES_MAX
from millstream.log.model.names import check_integer, check_text
from millstream.queue import commands as c
from millstream.queue.model import rates
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.bucket_changes import Claimed
from millstream.queue.model.grants import Grant, Granted, Routed
from millstream.queue.model.slots import Slots
from millstream.queue.model.state import QueueState
from millstream.queue.rules.arrivals import place_arrived
from millstream.queue.rules.endings import end_attempts, expire
from millstream.queue.rules.grouped_lane import take_passing
from millstream.queue.rules.index import QUIET
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.lookup import find_queue, of_queue
from millstream.queue.rules.notes import check_results, write_results
from millstream.queue.rules.placement import place
from millstream.queue.rules.ready import Rank
from millstream.queue.rules.selection import Selection
from millstream.queue.rules.sources import facts_of, has_patterns
from millstream.queue.rules.stride import stride, stride_together
from millstream.store.commit.transaction import WriteTransaction

CLAIM_MAX = 10_000
LAST: Rank = (9, 0)
"""A rank behind every real rank."""

PROMOTED_MIN = 1_000
"""The least number of due messages that a claim makes ready."""


def place_routed(tx: WriteTransaction, queue: str, routed: list[Routed]) -> int:
    """Place routed messages without a claim; return their number."""
    ledger = Ledger(tx, queue)
    total = place(ledger, routed)
    ledger.close()
    return total


class Claiming:
    """The operation of a claim. Claims of several consumers on a queue may run as a single
    operation.

    Measured with 32 threads that claim single messages: half the processor time per claim, 28 µs
    instead of 46 on a disk, 20 instead of 42 in memory (2026-11; `Joint` in
    `store/commit/group.py`).
    """

    __slots__ = ("command", "joins")

    order = 1
    """Claims run after the appends of their group, and may get the records of these appends
    (`store/commit/group.py`)."""

    def __init__(self, command: c.ClaimRouted) -> None:
        self.command = command
        can_join = command.count > 0 and not command.routed and not command.results
        self.joins = (command.queue, command.lease_ms, command.consumer) if can_join else None

    def __call__(self, tx: WriteTransaction) -> Granted:
        """Claim for this consumer alone; an error about damage carries the queue's name."""
        try:
            return claim(tx, self.command)
        except CorruptionError as error:
            if "queue" in error.data:
                raise
            raise of_queue(error, self.command.queue) from error

    def run_all(self, tx: WriteTransaction, operations: Sequence[Claiming]) -> list[Granted] | None:
        """Claim for several consumers."""
        claims = [operation.command for operation in operations]
        _check(self.command)  # joined claims have the same consumer and lease
        return stride_together(tx, claims)


def claim_next(tx: WriteTransaction, command: c.ClaimRouted | c.ClaimMessages) -> Granted | None:
    """Acknowledge and claim by a stride; None if the general rules must decide."""
    _check(command)
    if command.results:
        check_results(tx, command.results, command.acked)
    granted = stride(
        tx,
        command.queue,
        done=command.acked,
        counts=[command.count],
        lease_ms=command.lease_ms,
        consumer=command.consumer,
    )
    if command.results and granted is not None:
        _write_results(tx, command)
    return granted


def _write_results(tx: WriteTransaction, command: c.ClaimRouted | c.ClaimMessages) -> None:
    write_results(tx, find_queue(tx.view, command.queue).queue_id, command.results)


def claim(tx: WriteTransaction, command: c.ClaimRouted) -> Granted:
    """Acknowledge, place routed messages and claim, in a single commit."""
    granted = None if command.routed else claim_next(tx, command)
    if granted is not None:
        return granted
    if command.routed:
        _check(command)
    if command.results:
        check_results(tx, command.results, command.acked)
    is_fully_placed = not command.routed and _place_arrived(tx, command)
    ledger = Ledger(tx, command.queue)
    if command.acked:
        acked = c.FinishClaims(command.queue, command.acked, "ack", results=command.results)
        end_attempts(ledger, acked)
    if command.routed:
        place(ledger, command.routed)
    expired = expire(ledger)
    queue = ledger.queue
    is_fully_routed = command.needs_routed and _is_fully_routed(tx, queue)
    is_unrouted = command.needs_routed and not is_fully_routed
    is_overtaken = (ledger.is_overtaken or is_unrouted) and queue.spec.indexed
    chosen = Selection(queue)
    grants = [] if is_overtaken else _claim(ledger, command, chosen)
    ledger.close()
    fresh = 0 if queue.paused or queue.spec.indexed else queue.counts.fresh
    return Granted(
        grants,
        fresh,
        expired,
        _left(tx, queue),
        is_overtaken=is_overtaken,
        is_cut_short=chosen.is_cut_short,
        is_fully_routed=is_fully_placed or (is_fully_routed and not chosen.is_cut_short),
    )


def _place_arrived(tx: WriteTransaction, command: c.ClaimRouted) -> bool:
    """Place new records if the claim may need them; return whether no record is left to route."""
    key = keys.queue(command.queue)
    queue = tx.entity(key, QueueState)
    if not queue.queue_id or queue.paused or queue.counts.fresh >= command.count:
        return False
    is_fully_routed, _ = place_arrived(tx, key, queue)
    return is_fully_routed


def _is_fully_routed(tx: WriteTransaction, queue: QueueState) -> bool:
    """Return whether a queue has routed all records; False if only a reader may look at its logs."""
    if has_patterns(queue.spec):
        return False
    facts = facts_of(tx.view, queue.name)
    return facts is not None and not facts.sources


def _left(tx: WriteTransaction, queue: QueueState) -> int:
    """Return the number of messages that further claims can get now."""
    counts = queue.counts
    if queue.paused:
        return 0
    return _within_caps(queue, counts.fresh + counts.ready, counts.in_flight, tx.store_ms)


def _check(command: c.ClaimRouted | c.ClaimMessages) -> None:
    count, consumer = command.count, command.consumer
    is_whole = type(count) is int and count >= 0
    if not is_whole or count > CLAIM_MAX:
        check_integer("a claim's count", count)
        raise InvalidInput(f"a claim is for up to {CLAIM_MAX:,} messages, not {count:,}")
    ascii_only = type(consumer) is str and consumer.isascii()
    size = len(consumer if ascii_only else check_text("a consumer id", consumer).encode())
    if size > CONSUMER_BYTES_MAX:
        raise InvalidInput(f"a consumer id has up to {CONSUMER_BYTES_MAX} bytes, not {size:,}")


def _claim(ledger: Ledger, command: c.ClaimRouted, chosen: Selection) -> list[Grant]:
    queue = ledger.queue
    if queue.paused:
        return []
    count_max = _within_caps(queue, command.count, ledger.in_flight(), ledger.tx.store_ms)
    if count_max <= 0:
        return []
    if queue.spec.indexed:
        ledger.index.takes_runs = command.group_runs
        _choose_best(ledger, count_max, chosen)
    else:
        _choose_next(ledger, count_max, chosen)
    if not chosen.advances and not chosen.pieces:
        return []
    until_ms = ledger.tx.store_ms + queue.spec.lease_for(command.lease_ms)
    return _take(ledger, chosen, until_ms=until_ms, consumer=command.consumer)


def _within_caps(queue: QueueState, count: int, in_flight: int, now_ms: int) -> int:
    """Return how many of `count` messages the queue's caps allow."""
    spec = queue.spec
    if spec.max_in_flight:
        count = min(count, spec.max_in_flight - in_flight)
    if spec.rate:
        count = min(count, rates.affordable(spec.rate, queue.paid_until_ms, now_ms, spec.burst))
    return count


def _choose_next(ledger: Ledger, count_max: int, chosen: Selection) -> None:
    """Choose messages of a queue without groups and priorities: due messages first, then the lane."""
    if ledger.waits():
        index = ledger.index
        index.promote_due(max(count_max, PROMOTED_MIN))
        index.ready.read(count_max)
        while chosen.count < count_max and index.ready.best() is not None:
            chosen.add_claims(*index.take(count_max - chosen.count))
    if chosen.count < count_max and ledger.queue.counts.fresh:
        chosen.add_front(0, count_max - chosen.count)


def _choose_best(ledger: Ledger, count_max: int, chosen: Selection) -> None:
    """Choose messages by rank from the index and the fronts of the lanes; on a tie, from the index."""
    # Lanes are sorted by append time, so a heap of their fronts and the best index entry are
    # enough: a claim compares one candidate per lane, however many messages wait.
    index = ledger.index
    index.promote_due(max(count_max, PROMOTED_MIN))
    index.ready.read(count_max)
    fronts = [(_front_rank(ledger, chosen, lane), lane) for lane in ledger.queue.lanes]
    heapq.heapify(fronts)
    while chosen.count < count_max:
        entry = index.ready.best()
        limit = entry[0] if entry is not None else LAST
        if fronts and fronts[0][0] < limit:
            _, lane = heapq.heappop(fronts)
            limit = min(limit, fronts[0][0]) if fronts else limit
            if ledger.queue.spec.passes:
                if not take_passing(ledger, chosen, lane, count_max, limit):
                    return
            else:
                _take_front(ledger, chosen, lane, count_max - chosen.count, limit)
            rank = _front_rank(ledger, chosen, lane)
            if rank < LAST:
                heapq.heappush(fronts, (rank, lane))
        elif entry is not None:
            chosen.add_claims(*index.take(count_max - chosen.count))
            for claim_id in index.take_behind(entry[3], count_max - chosen.count):
                chosen.add_claims(claim_id, 1)
        else:
            return


def _front_rank(ledger: Ledger, chosen: Selection, lane: int) -> Rank:
    """Return the rank of the next message of a lane, or `LAST` for an empty lane."""
    place = chosen.first(lane)
    if place is None:
        return LAST
    bucket_id, slot = place
    return QUIET, ledger.index.rank(lane, ledger.bucket(bucket_id).arrived_ms(slot))


def _take_front(ledger: Ledger, chosen: Selection, lane: int, count_max: int, limit: Rank) -> None:
    """Take messages off a lane until a message elsewhere has a better rank."""
    run = 0
    at_ms: int | None = None
    for bucket_id, (start, stop) in chosen.front(lane):
        for span in ledger.bucket(bucket_id).sources(start, min(stop, start + count_max - run)):
            if span.at_ms != at_ms:
                at_ms = span.at_ms
                if run and (QUIET, ledger.index.rank(lane, at_ms)) >= limit:
                    chosen.add_front(lane, run)
                    return
            run += span.count
            if run >= count_max:
                chosen.add_front(lane, count_max)
                return
    chosen.add_front(lane, run)


def _take(ledger: Ledger, chosen: Selection, *, until_ms: int, consumer: str) -> list[Grant]:
    """Claim the chosen slots; return the grants."""
    tx, queue = ledger.tx, ledger.queue
    ranges: dict[int, list[Slots]] = {}
    for bucket_id, slots in chosen.pieces:
        ranges.setdefault(bucket_id, []).append(slots)
    for bucket_id, slots_in_bucket in ranges.items():
        ledger.change_bucket(bucket_id, Claimed(slots_in_bucket, tx.store_ms, until_ms, consumer))
        before = ledger.busy.get(bucket_id, queue.busy.get(bucket_id)) or until_ms
        ledger.busy[bucket_id] = min(before, until_ms)
    grants: list[Grant] = []
    for bucket_id, (start, stop) in chosen.pieces:
        grants += _granted(ledger.bucket(bucket_id), bucket_id, (start, stop), until_ms)
    total, spec, counts = chosen.count, queue.spec, ledger.counts
    counts.available -= total
    ledger.add_in_flight(total)
    counts.claimed += total
    counts.fresh -= sum(chosen.advances.values())
    ledger.lane_advances = chosen.advances
    if spec.rate:
        ledger.paid_until_ms = rates.paid(
            spec.rate, queue.paid_until_ms, tx.store_ms, total, spec.burst
        )
    return grants


def _granted(bucket: Bucket, bucket_id: int, slots: Slots, until_ms: int) -> list[Grant]:
    """Return the grants of claimed slots, a grant per attempt number and stretch of records."""
    grants: list[Grant] = []
    for start, stop, attempt in bucket.attempt_runs(*slots):
        scattered = bucket.scattered(start, stop)
        if scattered is not None:
            log_id, offsets = scattered
            first, count = bucket_id + start, stop - start
            grants.append(Grant(first, count, attempt, log_id, offsets[0], until_ms, offsets))
            continue
        grants += [
            Grant(bucket_id + slot, count, attempt, log_id, offset, until_ms)
            for slot, count, log_id, offset in bucket.stretches(start, stop)
        ]
    return grants
