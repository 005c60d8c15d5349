"""The ends of attempts: acknowledged, given back, failed, expired; and the renewal of leases.

Store time decides whether a lease holds. A consumer whose lease is lost gets `LeaseLost` with the
fate of the message. A repeat of the same ending succeeds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import groupby

from millstream.errors import InvalidInput, LeaseLost, TooLarge
from millstream.format import keys
from millstream.format.ids import CAPACITIES, NUMBER_BITS, bucket_of
from millstream.log.model.names import check_text
from millstream.queue import commands as c
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.bucket_changes import Ended, Renewed
from millstream.queue.model.cancel_requests import CancelRequests, CancelsNoted
from millstream.queue.model.message import LeaseEnd
from millstream.queue.model.note import check_error, check_progress
from millstream.queue.model.queue_changes import Unlisted
from millstream.queue.model.routing_marks import check_delay
from millstream.queue.model.slots import (
    AVAILABLE,
    CANCELLED,
    DONE,
    FAILED,
    FORGOTTEN,
    GONE,
    IN_FLIGHT,
    NONE,
    End,
    Slots,
)
from millstream.queue.rules.aging import note_cancelled, note_done
from millstream.queue.rules.change_log import EXPIRED
from millstream.queue.rules.dead_letter import publish_failed
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.lookup import find_queue
from millstream.queue.rules.notes import (
    check_results,
    write_error,
    write_progress,
    write_results,
)
from millstream.queue.rules.stride import stride
from millstream.store.commit.transaction import WriteTransaction

EXPIRE_PER_COMMIT = 10_000
UNDELIVERED = "its consumer had left before the message reached it"
RUN_MAX = 1_000_000
"""The most adjacent claims that a call may name."""

REASON_CHARS_MAX = 1_000
"""The most characters of a reason that are stored."""

_STATES = {"ack": DONE, "nack": AVAILABLE, "fail": FAILED}

HELD, REPEATED = "held", "repeated"
_WHY = {
    "done": ("is done already", "are done already"),
    "failed": ("has failed already", "have failed already"),
    "cancelled": ("was cancelled", "were cancelled"),
    "given_back": ("was given back already", "were given back already"),
    "claimed_again": (
        "was leased again since, to a later attempt, and only that counts",
        "were leased again since, to later attempts, and only those count",
    ),
    "expired": ("is no longer leased: its lease ended", "are no longer leased: their leases ended"),
    "unknown": (
        "is not known under its claim: it was never claimed so, or is purged, redriven or forgotten",
        "are not known under their claims: they were never claimed so, or are purged, redriven or "
        "forgotten",
    ),
}
"""The fate of messages with a lost lease, in words: for a single message, and for several."""

Part = tuple[int, Slots, int]
"""A bucket, slots in the bucket, and the attempt number of their claim."""

Lost = tuple[c.Run, str]
"""Claims with a lost lease, and the fate of their messages."""


def expire(ledger: Ledger) -> int:
    """Take back messages in flight with an expired lease; return their number."""
    tx, queue = ledger.tx, ledger.queue
    late_buckets = [
        bucket_id for bucket_id, until_ms in queue.busy.items() if until_ms <= tx.store_ms
    ]
    total = 0
    for bucket_id in late_buckets:
        if total >= EXPIRE_PER_COMMIT:
            break
        bucket = ledger.bucket(bucket_id)
        expired_parts = []
        for start, stop in bucket.runs(IN_FLIGHT):
            for first, last in _equal_runs(bucket, start, stop):
                if bucket.until_ms[first] <= tx.store_ms:
                    expired_parts.append((bucket_id, (first, last), int(bucket.attempts[first])))
                    total += last - first
        if expired_parts:
            _settle(ledger, expired_parts, state=AVAILABLE, delay_ms=0, reason=EXPIRED)
        else:
            ledger.busy[bucket_id] = earliest(bucket)
    return total


def _equal_runs(bucket: Bucket, start: int, stop: int) -> Iterator[Slots]:
    """Cut a range where the lease or the attempt changes."""
    facts = zip(bucket.until_ms[start:stop], bucket.attempts[start:stop], strict=True)
    for _, run in groupby(facts):
        first, start = start, start + len(list(run))
        yield first, start


def earliest(bucket: Bucket) -> int:
    """Return the time at which the first lease in a bucket ends; 0 without messages in flight."""
    return bucket.first_ms(IN_FLIGHT) or 0


def finish(tx: WriteTransaction, command: c.FinishClaims) -> list[c.Run]:
    """End attempts: all or none; with `each`, the attempts whose lease holds."""
    if command.outcome not in _STATES:
        raise InvalidInput(f"an attempt ends by ack, nack or fail, not by {command.outcome!r}")
    if command.reason != "":
        check_text("a reason", command.reason)
    if command.delay_ms is not None:
        check_delay(command.delay_ms)
    if command.results:
        check_results(tx, command.results, command.claims, outcome=command.outcome)
    if command.error is not None:
        _check_error(tx, command)
    if command.outcome == "ack" and stride(tx, command.queue, done=command.claims):
        if command.results:
            write_results(tx, find_queue(tx.view, command.queue).queue_id, command.results)
        return []
    ledger = Ledger(tx, command.queue)
    lost = end_attempts(ledger, command)
    ledger.close()
    return lost


def end_attempts(ledger: Ledger, command: c.FinishClaims) -> list[c.Run]:
    """End attempts whose lease holds, and return claims with a lost lease. Without `each`, one lost
    lease raises `LeaseLost` and ends none."""
    state = _STATES[command.outcome]
    good, lost = _sort_out(ledger, command.claims, state)
    if lost and not command.each:
        raise _lease_lost(ledger.queue.name, lost)
    _settle(ledger, good, state=state, delay_ms=command.delay_ms, reason=command.reason)
    if command.results or command.error is not None:
        _write_notes(ledger, good, command)
    return [run for run, _ in lost]


def _check_error(tx: WriteTransaction, command: c.FinishClaims) -> None:
    if command.outcome == "ack":
        raise InvalidInput("an acknowledgement carries a result, not an error")
    check_error(command.error)
    if tx.refusal is not None:
        raise tx.refusal


def _write_notes(ledger: Ledger, ended: Sequence[Part], command: c.FinishClaims) -> None:
    """Store results and errors of the attempts that this command has ended."""
    tx, queue_id = ledger.tx, ledger.queue.queue_id
    claims = {
        bucket_id + slot for bucket_id, (start, stop), _ in ended for slot in range(start, stop)
    }
    write_results(tx, queue_id, [result for result in command.results if result[0] in claims])
    if command.error is not None:
        write_error(tx, queue_id, claims, command.error)


def give_back(tx: WriteTransaction, command: c.ReturnClaims) -> None:
    """Make messages available again that no consumer has seen, even after their last attempt."""
    ledger = Ledger(tx, command.queue)
    good, _ = _sort_out(ledger, command.claims, AVAILABLE)
    _settle(ledger, good, state=AVAILABLE, delay_ms=0, reason=UNDELIVERED, may_fail=False)
    ledger.close()


def _sort_out(ledger: Ledger, claims: Iterable[c.Run], state: int) -> tuple[list[Part], list[Lost]]:
    """Split claims by whether their lease holds; a repeated ending is in neither list."""
    queue, now_ms = ledger.queue, ledger.tx.store_ms
    good: list[Part] = []
    lost: list[Lost] = []
    for bucket_id, slots, attempt in parts_of(claims):
        bucket = ledger.bucket(bucket_id)
        is_last = attempt >= queue.spec.max_attempts
        for start, stop, verdict in _judged(bucket, slots, attempt, state, now_ms, is_last=is_last):
            if verdict == HELD:
                good.append((bucket_id, (start, stop), attempt))
            elif verdict != REPEATED:
                run = (bucket_id + start, stop - start, attempt)
                lost.append((run, verdict))
    return good, lost


def _lease_lost(queue: str, lost: Sequence[Lost]) -> LeaseLost:
    """Return the error that tells the fate of every message."""
    counts = Counter[str]()
    for (_, count, _), why in lost:
        counts[why] += count
    fates = [
        f"{count} message{'s' * (count > 1)} {_WHY[why][count > 1]}"
        for why, count in counts.items()
    ]
    return LeaseLost(
        f"a claim of queue {queue!r} does not hold: {'; '.join(fates)}",
        queue=queue,
        lost=[run for run, _ in lost],
        why=[why for _, why in lost],
    )


def _judged(
    bucket: Bucket, slots: Slots, attempt: int, state: int, now_ms: int, *, is_last: bool = False
) -> Iterator[tuple[int, int, str]]:
    """Split slots by verdict: the lease holds, the ending is a repeat, or the fate of the message.

    A last attempt that was given back has failed, so giving it back again counts as a repeat.
    """
    ended = {
        DONE: (DONE, FORGOTTEN),
        FAILED: (FAILED,),
        AVAILABLE: (AVAILABLE, FAILED) if is_last else (AVAILABLE,),
    }.get(state, ())
    start, stop = slots
    if bucket.holds(start, stop, attempt, now_ms):
        yield start, stop, HELD
        return
    for slot in range(start, stop):
        if slot >= len(bucket.states) or bucket.attempts[slot] != attempt:
            yield slot, slot + 1, _fate(bucket, slot, attempt)
        elif bucket.states[slot] == IN_FLIGHT and bucket.until_ms[slot] > now_ms:
            yield slot, slot + 1, HELD
        elif (bucket.states[slot] in ended and (state == DONE or _was_given_up(bucket, slot))) or (
            state == AVAILABLE and _was_cancelled_at_its_end(bucket, slot)
        ):
            yield slot, slot + 1, REPEATED
        else:
            yield slot, slot + 1, _fate(bucket, slot, attempt)


def _fate(bucket: Bucket, slot: int, attempt: int) -> str:
    """Return the fate of a message with a lost lease: a key of `_WHY`."""
    if slot >= len(bucket.states) or bucket.attempts[slot] < attempt:
        return "unknown"
    state = bucket.states[slot]
    if state in (NONE, GONE):
        return "unknown"
    if state in (DONE, FORGOTTEN):
        return "done"
    if state == FAILED:
        return "failed"
    if state == CANCELLED:
        return "cancelled"
    if bucket.attempts[slot] > attempt:
        return "claimed_again"
    return "given_back" if state == AVAILABLE and _was_given_up(bucket, slot) else "expired"


def _was_given_up(bucket: Bucket, slot: int) -> bool:
    """Return whether a consumer ended the last attempt at a message, not an expired lease."""
    last = [end for end in bucket.ends if end.start <= slot < end.stop]
    return bool(last) and last[-1].reason != EXPIRED


def _was_cancelled_at_its_end(bucket: Bucket, slot: int) -> bool:
    """Return whether a consumer gave a message back after a cancel request, which cancelled it."""
    last = [end for end in bucket.ends if end.start <= slot < end.stop]
    is_cancelled = bucket.states[slot] == CANCELLED and bool(last) and last[-1].state == CANCELLED
    return is_cancelled and last[-1].reason != EXPIRED


def _settle(
    ledger: Ledger,
    claimed_parts: Iterable[Part],
    *,
    state: int,
    delay_ms: int | None,
    reason: str,
    may_fail: bool = True,
) -> None:
    """End attempts with a valid lease. A retry without attempts left fails, unless `may_fail` is
    False.
    """
    tx, queue, counts = ledger.tx, ledger.queue, ledger.counts
    # The dead letter, the index and the counts must change in the same commit as the bucket, so
    # this loop does all of them per range. It is slower than a pass per entity, but never sees half
    # an end.
    reason = reason[:REASON_CHARS_MAX]
    if state == AVAILABLE:
        requests = tx.entity(keys.cancels(queue.queue_id), CancelRequests)
        if requests.claims:
            claimed_parts = _cancel_requested(ledger, claimed_parts, requests.claims, reason)
    may_fail = may_fail and state == AVAILABLE
    for (bucket_id, (start, stop), attempt), is_over in _with_last(ledger, claimed_parts, may_fail):
        total = stop - start
        final = FAILED if is_over else state
        due_ms = 0
        bucket = ledger.bucket(bucket_id)
        if final == AVAILABLE:
            wait_ms = queue.spec.backoff.wait_ms(attempt, random.random())
            due_ms = tx.store_ms + (wait_ms if delay_ms is None else max(0, delay_ms))
            if not (bucket.marks and queue.spec.group_by):
                ledger.index.wait(bucket_id + start, due_ms, total)
            else:
                for slot in range(start, stop):
                    priority, group = bucket.mark(slot)
                    ledger.index.retry(
                        bucket_id + slot,
                        priority=priority,
                        group=group,
                        at_ms=bucket.arrived_ms(slot),
                        due_ms=due_ms,
                    )
        elif bucket.marks and queue.spec.group_by:
            ledger.index.leave(bucket.groups(start, stop))
        if final == DONE:
            note_done(tx, queue.queue_id, bucket_id, bucket)
        ended = Ended([(start, stop)], tx.store_ms, final, due_ms, reason)
        ledger.change_bucket(bucket_id, ended)
        counts.in_flight -= total
        counts.expired += total if reason == EXPIRED else 0
        if final == DONE:
            counts.done += total
            ledger.change_alive(bucket_id, -total)
        elif final == FAILED:
            counts.failed += total
            if queue.spec.dead_letter:
                publish_failed(ledger, bucket_id, bucket, (start, stop), reason)
        else:
            counts.available += total
            counts.retried += total
        ledger.busy[bucket_id] = earliest(bucket)


def _with_last(
    ledger: Ledger, parts: Iterable[Part], may_fail: bool
) -> Iterator[tuple[Part, bool]]:
    """Yield parts, and whether no attempt is left. A claim that no consumer has seen is no attempt."""
    attempts_max = ledger.queue.spec.max_attempts
    for part in parts:
        bucket_id, (start, stop), attempt = part
        if not may_fail or attempt < attempts_max:
            yield part, False
            continue
        unseen = [end for end in ledger.bucket(bucket_id).ends if end.reason == UNDELIVERED]

        def is_last(slot: int, attempt: int = attempt, unseen: list[End] = unseen) -> bool:
            return attempt - sum(end.start <= slot < end.stop for end in unseen) >= attempts_max

        for is_over, slots in groupby(range(start, stop), is_last):
            first, *others = slots
            yield (bucket_id, (first, first + 1 + len(others)), attempt), is_over


def _cancel_requested(
    ledger: Ledger, claimed_parts: Iterable[Part], requested: Container[int], reason: str
) -> list[Part]:
    """Cancel messages whose consumers were asked to stop; return the other parts."""
    tx, queue, remaining_parts, over = ledger.tx, ledger.queue, [], []
    for bucket_id, (start, stop), attempt in claimed_parts:
        bucket = ledger.bucket(bucket_id)
        first = start
        for slot in range(start, stop):
            if bucket_id + slot not in requested:
                continue
            if first < slot:
                remaining_parts.append((bucket_id, (first, slot), attempt))
            first = slot + 1
            over.append(bucket_id + slot)
            if bucket.marks and queue.spec.group_by:
                ledger.index.leave({bucket.mark(slot)[1]: 1})
            note_cancelled(tx, queue.queue_id, bucket_id, bucket)
            ended = Ended([(slot, slot + 1)], tx.store_ms, CANCELLED, 0, reason)
            ledger.change_bucket(bucket_id, ended)
            ledger.counts.in_flight -= 1
            ledger.counts.expired += reason == EXPIRED
            ledger.change_alive(bucket_id, -1)
            ledger.busy[bucket_id] = earliest(bucket)
        if first < stop:
            remaining_parts.append((bucket_id, (first, stop), attempt))
    if over:
        tx.change(ledger.key, Unlisted(len(over), []))
        tx.change(keys.cancels(queue.queue_id), CancelsNoted(over=over))
    return remaining_parts


def note_progress(tx: WriteTransaction, command: c.NoteProgress) -> None:
    """Store the progress of attempts whose lease holds, all or none."""
    check_progress(command.progress)
    if tx.refusal is not None:
        raise tx.refusal
    ledger = Ledger(tx, command.queue)
    good, lost = _sort_out(ledger, command.claims, GONE)
    if lost:
        raise _lease_lost(command.queue, lost)
    for bucket_id, (start, stop), _ in good:
        for claim_id in range(bucket_id + start, bucket_id + stop):
            write_progress(tx, ledger.queue.queue_id, claim_id, command.progress)


def renew(tx: WriteTransaction, command: c.RenewClaims) -> LeaseEnd:
    """Renew leases; a lost lease leaves all leases as they were."""
    ledger = Ledger(tx, command.queue)
    queue = ledger.queue
    until_ms = tx.store_ms + queue.spec.lease_for(command.lease_ms)
    claimed_parts = list(parts_of(command.claims))
    for bucket_id, slots, attempt in claimed_parts:
        bucket = ledger.bucket(bucket_id)
        for start, _, verdict in _judged(bucket, slots, attempt, GONE, tx.store_ms):
            if verdict != HELD:
                claim_id = bucket_id + start
                raise _lease_lost(queue.name, [((claim_id, 1, attempt), verdict)])
    for bucket_id, slots, _ in claimed_parts:
        ledger.change_bucket(bucket_id, Renewed([slots], until_ms))
        ledger.busy[bucket_id] = earliest(ledger.bucket(bucket_id))
    ledger.close()
    return LeaseEnd(until_ms, tx.state.time.epoch_ms())


def parts_of(runs: Iterable[c.Run]) -> Iterator[Part]:
    """Cut runs of claims at the ends of their buckets, in order; a claim named twice counts once."""
    end: dict[int, int] = {}
    for claim_id, count, attempt in sorted(runs):
        if claim_id < 0 or count < 1 or attempt < 1:
            raise InvalidInput(
                f"a run of claims is (claim id, count from 1, attempt from 1), "
                f"not ({claim_id}, {count}, {attempt})"
            )
        if count > RUN_MAX:
            raise TooLarge(
                f"a run has up to {RUN_MAX:,} claims, not {count:,}", size=count, limit=RUN_MAX
            )
        last = claim_id + count
        claim_id = max(claim_id, end.get(attempt, 0))
        end[attempt] = max(last, end.get(attempt, 0))
        while claim_id < last:
            bucket_id = bucket_of(claim_id)
            slot = claim_id - bucket_id
            count_here = min(last - claim_id, CAPACITIES[claim_id >> NUMBER_BITS] - slot)
            yield bucket_id, (slot, slot + count_here), attempt
            claim_id += count_here
