"""How messages come to consumers: chosen, and claimed for a while.

Rules over a transaction; a claim is the pair (claim id, attempt). How attempts end is in `endings`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from millstream.errors import CorruptionError, InvalidInput
from millstream.limits import CONSUMER_BYTES_MAX
from millstream.log.model.names import check_integer, check_text
from millstream.queue import commands as c
from millstream.queue.model import pace
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.bucket_changes import Claimed
from millstream.queue.model.slots import Slots
from millstream.queue.model.state import QueueState
from millstream.queue.rules.ack_and_claim import stride, stride_together
from millstream.queue.rules.choosing import Chosen
from millstream.queue.rules.endings import end_attempts, expire
from millstream.queue.rules.finding import of_queue
from millstream.queue.rules.grouped_lane import take_passing
from millstream.queue.rules.index import QUIET, Rank
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.placing import place
from millstream.store.commit.transaction import WriteTransaction

CLAIM_MAX = 10_000
LAST: Rank = (9, 0)
"""A rank behind all others."""

PROMOTED_MIN = 1_000
"""Messages whose time has come that one claim makes ready, at least."""


def place_routed(tx: WriteTransaction, queue: str, routed: list[c.Routed]) -> int:
    """Take over what was routed, without claiming any of it; how many messages."""
    ledger = Ledger(tx, queue)
    total = place(ledger, routed)
    ledger.close()
    return total


class Claiming:
    """The operation of a claim; those of several consumers on one queue are made as one.

    32 threads that claim one message each need half the processor's time per claim with it: 28 µs
    instead of 46 on a disk, 20 instead of 42 in memory (2026-11; `Joint` in `store/commit/group.py`).
    """

    __slots__ = ("command", "joins")

    order = 1
    """Behind the appends of its group, whose records it may get (`store/commit/group.py`)."""

    def __init__(self, command: c.ClaimRouted) -> None:
        self.command = command
        simple = command.count > 0 and not command.routed
        self.joins = (command.queue, command.lease_ms, command.consumer) if simple else None

    def __call__(self, tx: WriteTransaction) -> c.Granted:
        """Claim for this consumer alone; an error about damage has the queue's name."""
        try:
            return claim(tx, self.command)
        except CorruptionError as error:
            if "queue" in error.data:
                raise
            raise of_queue(error, self.command.queue) from error

    def run_all(
        self, tx: WriteTransaction, operations: Sequence[Claiming]
    ) -> list[c.Granted] | None:
        """Claim for several consumers."""
        claims = [one.command for one in operations]
        _check(self.command)  # of the same consumer as all others
        return stride_together(tx, claims)


def claim_next(tx: WriteTransaction, command: c.ClaimRouted | c.ClaimMessages) -> c.Granted | None:
    """Finish and claim what is next on a plain queue; None if it is not so simple."""
    _check(command)
    return stride(
        tx,
        command.queue,
        done=command.acked,
        counts=[command.count],
        lease_ms=command.lease_ms,
        consumer=command.consumer,
    )


def claim(tx: WriteTransaction, command: c.ClaimRouted) -> c.Granted:
    """Finish, route and claim, in one commit."""
    granted = None if command.routed else claim_next(tx, command)
    if granted is not None:
        return granted
    if command.routed:
        _check(command)
    ledger = Ledger(tx, command.queue)
    if command.acked:
        end_attempts(ledger, c.FinishClaims(command.queue, command.acked, "ack"))
    if command.routed:
        place(ledger, command.routed)
    expired = expire(ledger)
    queue = ledger.queue
    is_overtaken = ledger.is_overtaken and queue.spec.indexed
    chosen = Chosen(queue)
    grants = [] if is_overtaken else _claim(ledger, command, chosen)
    ledger.close()
    ahead = 0 if queue.paused or queue.spec.indexed else queue.counts.fresh
    return c.Granted(
        grants,
        ahead,
        expired,
        _left(tx, queue),
        is_overtaken=is_overtaken,
        is_cut_short=chosen.is_cut_short,
    )


def _left(tx: WriteTransaction, queue: QueueState) -> int:
    """How many messages can be claimed at once, now that a claim was made."""
    counts = queue.counts
    if queue.paused:
        return 0
    return _within_caps(queue, counts.fresh + counts.ready, counts.in_flight, tx.store_ms)


def _check(command: c.ClaimRouted | c.ClaimMessages) -> None:
    count, consumer = command.count, command.consumer
    if check_integer("a claim's count", count) > CLAIM_MAX:
        raise InvalidInput(f"a claim is for up to {CLAIM_MAX:,} messages, not {count:,}")
    ascii_only = type(consumer) is str and consumer.isascii()
    size = len(consumer if ascii_only else check_text("a consumer id", consumer).encode())
    if size > CONSUMER_BYTES_MAX:
        raise InvalidInput(f"a consumer id has up to {CONSUMER_BYTES_MAX} bytes, not {size:,}")


def _claim(ledger: Ledger, command: c.ClaimRouted, chosen: Chosen) -> list[c.Grant]:
    queue = ledger.queue
    if queue.paused:
        return []
    most = _within_caps(queue, command.count, ledger.in_flight(), ledger.tx.store_ms)
    if most <= 0:
        return []
    if queue.spec.indexed:
        _choose_best(ledger, most, chosen)
    else:
        _choose_next(ledger, most, chosen)
    if not chosen.taken and not chosen.parts:
        return []
    until_ms = ledger.tx.store_ms + queue.spec.lease_for(command.lease_ms)
    return _take(ledger, chosen, until_ms=until_ms, consumer=command.consumer)


def _within_caps(queue: QueueState, count: int, in_flight: int, now_ms: int) -> int:
    """How many messages may be claimed: what is asked for, within the queue's caps."""
    spec = queue.spec
    if spec.max_in_flight:
        count = min(count, spec.max_in_flight - in_flight)
    if spec.rate:
        count = min(count, pace.affordable(spec.rate, queue.paid_until_ms, now_ms))
    return count


def _choose_next(ledger: Ledger, most: int, chosen: Chosen) -> None:
    """Of a plain queue: first what waited for a time that has come, then what is next."""
    if ledger.waits():
        index = ledger.index
        index.promote_due(max(most, PROMOTED_MIN))
        index.read(most)
        while chosen.count < most and index.best() is not None:
            chosen.add_claims(*index.take(most - chosen.count))
    if chosen.count < most and ledger.queue.counts.fresh:
        chosen.add_front(0, most - chosen.count)


def _choose_best(ledger: Ledger, most: int, chosen: Chosen) -> None:
    """By rank, among the index and the fronts of the lanes; of equals the one in the index."""
    index = ledger.index
    index.promote_due(max(most, PROMOTED_MIN))
    index.read(most)
    fronts = [(_front_rank(ledger, chosen, lane), lane) for lane in ledger.queue.lanes]
    heapq.heapify(fronts)
    while chosen.count < most:
        entry = index.best()
        limit = entry[0] if entry is not None else LAST
        if fronts and fronts[0][0] < limit:
            _, lane = heapq.heappop(fronts)
            limit = min(limit, fronts[0][0]) if fronts else limit
            if ledger.queue.spec.passes:
                if not take_passing(ledger, chosen, most, limit):
                    return
            else:
                _take_front(ledger, chosen, lane, most - chosen.count, limit)
            rank = _front_rank(ledger, chosen, lane)
            if rank < LAST:
                heapq.heappush(fronts, (rank, lane))
        elif entry is not None:
            chosen.add_claims(*index.take(most - chosen.count))
        else:
            return


def _front_rank(ledger: Ledger, chosen: Chosen, lane: int) -> Rank:
    """The rank of the first message in a lane that was not taken; the last of all without one."""
    place = chosen.first(lane)
    if place is None:
        return LAST
    bucket_id, slot = place
    return QUIET, ledger.index.rank(lane, ledger.bucket(bucket_id).arrived_ms(slot))


def _take_front(ledger: Ledger, chosen: Chosen, lane: int, most: int, limit: Rank) -> None:
    """Take messages off a lane while nothing else has a better rank."""
    run = 0
    at_ms: int | None = None
    for bucket_id, (start, stop) in chosen.front(lane):
        for span in ledger.bucket(bucket_id).sources(start, min(stop, start + most - run)):
            if span.at_ms != at_ms:
                at_ms = span.at_ms
                if run and (QUIET, ledger.index.rank(lane, at_ms)) >= limit:
                    chosen.add_front(lane, run)
                    return
            run += span.count
            if run >= most:
                chosen.add_front(lane, most)
                return
    chosen.add_front(lane, run)


def _take(ledger: Ledger, chosen: Chosen, *, until_ms: int, consumer: str) -> list[c.Grant]:
    """Claim slots; answers what was granted."""
    tx, queue = ledger.tx, ledger.queue
    ranges: dict[int, list[Slots]] = {}
    for bucket_id, slots in chosen.parts:
        ranges.setdefault(bucket_id, []).append(slots)
    for bucket_id, found in ranges.items():
        ledger.change_bucket(bucket_id, Claimed(found, tx.store_ms, until_ms, consumer))
        before = ledger.busy.get(bucket_id, queue.busy.get(bucket_id)) or until_ms
        ledger.busy[bucket_id] = min(before, until_ms)
    grants: list[c.Grant] = []
    for bucket_id, (start, stop) in chosen.parts:
        grants += _granted(ledger.bucket(bucket_id), bucket_id, (start, stop), until_ms)
    total, rate, counts = chosen.count, queue.spec.rate, ledger.counts
    counts.available -= total
    ledger.add_in_flight(total)
    counts.claimed += total
    counts.fresh -= sum(chosen.taken.values())
    ledger.taken = chosen.taken
    if rate:
        ledger.paid_until_ms = pace.paid(rate, queue.paid_until_ms, tx.store_ms, total)
    return grants


def _granted(bucket: Bucket, bucket_id: int, slots: Slots, until_ms: int) -> list[c.Grant]:
    """Messages that were claimed: those of the same attempt together, neighbours or not."""
    grants: list[c.Grant] = []
    for start, stop, attempt in bucket.attempt_runs(*slots):
        apart = bucket.scattered(start, stop)
        if apart is not None:
            log_id, offsets = apart
            first, count = bucket_id + start, stop - start
            grants.append(c.Grant(first, count, attempt, log_id, offsets[0], until_ms, offsets))
            continue
        grants += [
            c.Grant(bucket_id + slot, count, attempt, log_id, offset, until_ms)
            for slot, count, log_id, offset in bucket.stretches(start, stop)
        ]
    return grants
