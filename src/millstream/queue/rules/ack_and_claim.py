"""A stride: the step that workers of a plain queue take again and again.

The run of messages that a worker holds is done, and the next run in its lane becomes its own. Where
that is all there is to do, it is done here, without a ledger and in two small changes. Anything else
(a lease that has run out, a retry that waits, a cap, the edge of a bucket) is left to the rules in
`claims` and `endings`, which come to the same end, only more slowly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from msgspec.structs import astuple

from millstream.format import keys
from millstream.format.ids import CAPACITIES, NUMBER_BITS, bucket_of
from millstream.queue import commands as c
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.bucket_changes import Caught, Strode
from millstream.queue.model.queue_changes import Advanced, CaughtUp
from millstream.queue.model.slots import IN_FLIGHT, Slots, Stretch
from millstream.queue.model.state import QueueState
from millstream.queue.rules.aging import note_done
from millstream.queue.rules.arriving import place_arrival, place_arrived
from millstream.store.commit.transaction import WriteTransaction

FIRST = 1
"""The attempt at a message that comes from its lane: it was never claimed before."""


def stride(
    tx: WriteTransaction,
    name: str,
    *,
    done: Sequence[c.Run],
    counts: Sequence[int] = (),
    lease_ms: int | None = None,
    consumer: str = "",
) -> c.Granted | None:
    """Finish runs of claims and make claims of so many messages; None if it is not so simple.

    What has come to the queue's logs meanwhile is placed on the way, if more is asked for than waits.
    """
    key, now_ms = keys.queue(name), tx.store_ms
    queue = tx.entity(key, QueueState)
    if not queue.is_steady(now_ms):
        return None
    total, is_level, caught = sum(counts), False, None
    front = queue.front(total)
    if front is None and queue.counts.fresh < total:
        can_catch = len(counts) == 1 and not queue.counts.fresh
        is_level, caught = place_arrived(tx, key, queue, leaves_one=can_catch)
        fresh = queue.counts.fresh if caught is None else caught.total
        if is_level and len(counts) == 1 and fresh < total:
            total, counts = fresh, [fresh]  # this is all there is
        if caught is None:
            front = queue.front(total)
        else:
            front = caught.bucket_id, (caught.slot, caught.slot + total)
    held = None if front is None else _held(tx, queue.queue_id, done)
    if front is None or held is None or not (held or total or is_level):
        if caught is not None:
            place_arrival(tx, key, queue, caught)
        return None
    if not (held or total):
        return c.Granted([], 0, 0, 0, is_level=True)
    taken_in, (first, last) = front
    until_ms = now_ms + queue.spec.lease_for(lease_ms) if total else 0
    if total and taken_in not in held:
        held[taken_in] = _place(tx, queue.queue_id, taken_in)
    ends = []
    for bucket_id, (bucket_key, bucket, finished) in held.items():
        taken = _cut(first, counts) if bucket_id == taken_in else []
        if finished:
            note_done(tx, queue.queue_id, bucket_id, bucket)
        change: Strode | Caught = Strode(finished, taken, now_ms, until_ms, consumer)
        if taken and caught is not None:
            change = Caught(caught.spans, finished, taken[0], now_ms, until_ms, consumer)
        tx.change(bucket_key, change)
        if finished:
            size = 0
            for start, stop in finished:
                size += stop - start
            ends.append((bucket_id, size, bucket.any_are(IN_FLIGHT)))
    if caught is None:
        tx.change(key, Advanced(now_ms, ends, total, taken_in, until_ms))
    else:
        tx.change(key, CaughtUp(now_ms, ends, total, until_ms, *caught[:4]))
    stretches: Sequence[Stretch] = ()
    if caught is not None and len(caught.spans) == 1:
        stretches = [(first, total, caught.log_id, caught.spans[0].offset)]
    elif total:
        stretches = held[taken_in][1].stretches(first, last)
    grants = []
    for slot, count, log_id, offset in stretches:
        grants.append(c.Grant(taken_in + slot, count, FIRST, log_id, offset, until_ms))
    return c.Granted(grants, queue.counts.fresh, 0, queue.counts.fresh, is_level=is_level)


Place = tuple[bytes, Bucket, list[Slots]]
"""A bucket that a stride touches: its key, itself, and which of its slots are done."""


def _place(tx: WriteTransaction, queue_id: int, bucket_id: int) -> Place:
    key = keys.bucket(queue_id, bucket_id)
    return key, tx.entity(key, Bucket), []


def _cut(start: int, counts: Sequence[int]) -> list[Slots]:
    """Slots side by side, so many for each."""
    if len(counts) == 1:
        return [(start, start + counts[0])]
    return list(pairwise(accumulate(counts, initial=start)))


def _held(tx: WriteTransaction, queue_id: int, runs: Sequence[c.Run]) -> dict[int, Place] | None:
    """Runs by bucket, if each lies in a plain one, all are held, and none is named twice."""
    found: dict[int, Place] = {}
    end = 0
    for claim_id, count, attempt in runs if len(runs) == 1 else sorted(runs):
        bucket_id = bucket_of(claim_id)
        place = found.get(bucket_id)
        if place is None:
            place = found[bucket_id] = _place(tx, queue_id, bucket_id)
        first = claim_id - bucket_id
        last = first + count
        bucket = place[1]
        if claim_id < end or bucket.marks or not bucket.holds(first, last, attempt, tx.store_ms):
            return None
        place[2].append((first, last))
        end = claim_id + count
    return found


def stride_together(
    tx: WriteTransaction, claims: Sequence[c.ClaimRouted]
) -> list[c.Granted] | None:
    """Claims of several consumers on one queue as one stride; None if it is not so simple."""
    first, counts = claims[0], [claim.count for claim in claims]
    runs = _merged([run for claim in claims for run in claim.acked])
    if runs is None:
        return None
    granted = stride(
        tx,
        first.queue,
        done=runs,
        counts=counts,
        lease_ms=first.lease_ms,
        consumer=first.consumer,
    )
    return None if granted is None else _dealt(granted, counts)


def _merged(runs: list[c.Run]) -> list[c.Run] | None:
    """Runs of claims with neighbours in a bucket joined; None if one is of no messages."""
    found: list[c.Run] = []
    end = border = last_attempt = -1
    for claim_id, count, attempt in sorted(runs):
        if count < 1 or attempt < 1:
            return None
        if claim_id == end < border and attempt == last_attempt:
            first, before, _ = found[-1]
            found[-1] = first, before + count, attempt
        else:
            found.append((claim_id, count, attempt))
            border = bucket_of(claim_id) + CAPACITIES[claim_id >> NUMBER_BITS]
            last_attempt = attempt
        end = claim_id + count
    return found


def _dealt(granted: c.Granted, counts: Sequence[int]) -> list[c.Granted]:
    """What was claimed, dealt out: so many messages to each."""
    deal = c.Deal(list(_dealing(granted.grants, counts)))
    ahead, left = granted.ahead, granted.left
    is_level = granted.is_level
    return [
        c.Granted(own, ahead, 0, left, deal, at, is_level=is_level)
        for at, own in enumerate(deal.grants)
    ]


def _dealing(grants: Sequence[c.Grant], counts: Sequence[int]) -> Iterator[list[c.Grant]]:
    rest = iter(grants)
    claim_id = left = attempt = log_id = offset = until_ms = 0
    for count in counts:
        own: list[c.Grant] = []
        while count:
            if not left:
                # No offsets: a stride grants neighbours.
                claim_id, left, attempt, log_id, offset, until_ms, _ = astuple(next(rest))
            some = count if count < left else left
            own.append(c.Grant(claim_id, some, attempt, log_id, offset, until_ms))
            claim_id += some
            offset += some
            left -= some
            count -= some
        yield own
