"""Peeking: reads messages in a state, in claim id order, without claiming them.

Buckets are read a few at a time. Under the mutex, a peek only copies buckets that hold messages of
the state; it selects and reads the messages outside. So each bucket is shown as of a commit, and
the queue may change between two buckets.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.format.ids import NUMBER_BITS, capacity_of, make_bucket_id, split_id
from millstream.queue import commands as c
from millstream.queue.model.attempts import reasons_of
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.grants import Grant
from millstream.queue.model.message import Lot
from millstream.queue.model.slots import (
    AVAILABLE,
    CANCELLED,
    DONE,
    FAILED,
    IN_FLIGHT,
    Slots,
    Span,
)
from millstream.queue.model.state import QueueState
from millstream.queue.rules.lookup import find_bucket, need_queue
from millstream.queue.service.backlog import route_ahead
from millstream.queue.service.payloads import peek_grant, read_singles
from millstream.store.state.hypothetical import Reading
from millstream.store.state.view import View
from millstream.store.store import Store

PEEK_MAX = 10_000
BUCKETS_PER_LOOK = 100
"""The most buckets to examine under the mutex at a time."""

COPIES_PER_LOOK = 16
"""The most buckets to copy under the mutex at a time."""

STATES = {
    "available": AVAILABLE,
    "delayed": AVAILABLE,
    "in_flight": IN_FLIGHT,
    "done": DONE,
    "failed": FAILED,
    "cancelled": CANCELLED,
}
"""The states that a peek shows. A delayed message is an available message that is not due yet."""

SCHEDULE_READ_MAX = 10_000
"""The most rows of messages for a wall time that a peek reads. Of further messages the peek shows the
due time that was computed at their `put`; it differs only if the wall clock was set since.
"""

ENDED = ("done", "cancelled")
"""The states of messages whose bucket may hold no other message."""

Shown = tuple[Grant, str]
"""Messages to show, in the form of a grant, and the reason why their last attempt ended."""


def peek_messages(store: Store, query: c.PeekMessages) -> list[Lot]:
    """Return messages in a state, in claim id order, without claiming them."""
    if query.state not in STATES:
        raise InvalidInput(f"a state is one of {', '.join(STATES)}, not {query.state!r}")
    if not 0 <= query.count <= PEEK_MAX:
        raise InvalidInput(f"a peek is at up to {PEEK_MAX:,} messages, not {query.count:,}")
    reading = Reading(store)
    if STATES[query.state] == AVAILABLE and query.route:
        route_ahead(reading, query.queue, query.count)
    shown = _find_newest(reading, query) if query.newest else _find(reading, query)
    return _read(store, query.queue, shown, is_done=query.state in ENDED)


def copies_of(
    reading: Reading, name: str, state: str | None, first: int
) -> Iterator[tuple[int, Bucket]]:
    """Yield copies of the buckets with messages in a state (or any), from a claim number on."""
    position: int | None = first
    while position is not None:
        look = partial(_copies, name=name, state=state, first=position)
        page, position = reading.view(look)
        yield from page


def _copies(
    view: View, *, name: str, state: str | None, first: int
) -> tuple[list[tuple[int, Bucket]], int | None]:
    """Return some copies, and the claim number to continue from; None after the last."""
    queue = need_queue(view, name)
    copies: list[tuple[int, Bucket]] = []
    for looked_at, bucket_id in enumerate(find_buckets(view, queue, state, first)):
        if looked_at == BUCKETS_PER_LOOK or len(copies) == COPIES_PER_LOOK:
            return copies, split_id(bucket_id)[1]
        bucket = find_bucket(view, queue, bucket_id)
        if state is None or bucket.any_are(STATES[state]):
            copies.append((bucket_id, bucket.copied()))
    return copies, None


def find_buckets(view: View, queue: QueueState, state: str | None, first: int) -> list[int]:
    """Return the next buckets that may hold messages in a state, up to a step's number plus one."""
    limit = BUCKETS_PER_LOOK + 1
    if state is not None and state not in ENDED:
        ahead = [
            bucket_id
            for bucket_id in queue.alive
            if _number(bucket_id) + capacity_of(bucket_id >> NUMBER_BITS) > first
        ]
        return heapq.nsmallest(limit, ahead, key=_number)
    bucket_ids: list[int] = []
    for began, end, exponent in queue.eras:
        capacity = capacity_of(exponent)
        low = max(began, first) // capacity * capacity
        high = end if end >= 0 else (1 << NUMBER_BITS) - capacity
        if low < high and len(bucket_ids) < limit:
            start = keys.bucket(queue.queue_id, make_bucket_id(exponent, low))
            stop = keys.bucket(queue.queue_id, (exponent << NUMBER_BITS) + high)
            page = view.find(start, stop, limit=limit - len(bucket_ids))
            bucket_ids += [keys.pair(key)[1] for key in page]
    return bucket_ids


def _newest_copies(
    reading: Reading, name: str, state: str, before: int
) -> Iterator[tuple[int, Bucket]]:
    """Yield copies of the buckets with messages in a state, backwards from a claim number."""

    def look(view: View) -> tuple[list[tuple[int, Bucket]], int]:
        queue = need_queue(view, name)
        copies: list[tuple[int, Bucket]] = []
        bucket_ids = _buckets_before(view, queue, state, before)
        for bucket_id in bucket_ids:
            if len(copies) == COPIES_PER_LOOK:
                return copies, _number(copies[-1][0])
            bucket = find_bucket(view, queue, bucket_id)
            if bucket.any_are(STATES[state]):
                copies.append((bucket_id, bucket.copied()))
        return copies, _number(bucket_ids[-1]) if bucket_ids else 0

    while before > 0:
        page, before = reading.view(look)
        yield from page


def _buckets_before(view: View, queue: QueueState, state: str, before: int) -> list[int]:
    """Return the last buckets that may hold messages in a state below a claim number, backwards."""
    if state not in ENDED:
        behind = [bucket_id for bucket_id in queue.alive if _number(bucket_id) < before]
        return heapq.nlargest(BUCKETS_PER_LOOK, behind, key=_number)
    bucket_ids: list[int] = []
    for began, end, exponent in reversed(queue.eras):
        capacity = capacity_of(exponent)
        high = min(queue.next if end < 0 else end, before)
        start = keys.bucket(queue.queue_id, make_bucket_id(exponent, began // capacity * capacity))
        stop = keys.bucket(queue.queue_id, (exponent << NUMBER_BITS) + max(high, began))
        oldest = [_number(keys.pair(key)[1]) for key in view.find(start, stop, limit=1)]
        number = (high - 1) // capacity * capacity
        while oldest and number >= oldest[0] and len(bucket_ids) < BUCKETS_PER_LOOK:
            bucket_ids.append(make_bucket_id(exponent, number))
            number -= capacity
    return bucket_ids


def _number(bucket_id: int) -> int:
    return split_id(bucket_id)[1]


def _find(reading: Reading, query: c.PeekMessages) -> list[Shown]:
    """Return the messages that a peek shows."""
    first = 0 if query.after < 0 else split_id(query.after)[1] + 1
    shown: list[Shown] = []
    missing = query.count
    buckets = copies_of(reading, query.queue, query.state, first) if missing else ()
    delays = reading.view(partial(_read_delays, query=query))
    for bucket_id, bucket in buckets:
        low = max(0, first - _number(bucket_id))
        reasons = reasons_of(bucket, 0, len(bucket.states))
        for start, stop in delays.runs(bucket_id, bucket, low):
            for span in bucket.sources(start, min(stop, start + missing)):
                shown += _alike(bucket, bucket_id, span, reasons)
                missing -= span.count
            if missing <= 0:
                return shown
    return shown


def _find_newest(reading: Reading, query: c.PeekMessages) -> list[Shown]:
    """Return the last messages in a state, in claim id order."""
    before = split_id(query.after)[1] if query.after >= 0 else 1 << NUMBER_BITS
    delays = reading.view(partial(_read_delays, query=query))
    by_bucket: list[list[Shown]] = []
    missing = query.count
    for bucket_id, bucket in _newest_copies(reading, query.queue, query.state, before):
        if missing <= 0:
            break
        end = before - _number(bucket_id)
        reasons = reasons_of(bucket, 0, len(bucket.states))
        in_bucket = [
            shown
            for start, stop in delays.runs(bucket_id, bucket, 0)
            for span in (bucket.sources(start, min(stop, end)) if start < end else ())
            for shown in _alike(bucket, bucket_id, span, reasons)
        ]
        by_bucket.append(_last(in_bucket, missing))
        missing -= sum(grant.count for grant, _ in by_bucket[-1])
    return [shown for in_bucket in reversed(by_bucket) for shown in in_bucket]


def _last(shown: list[Shown], count: int) -> list[Shown]:
    """Return the last messages, up to a number."""
    chosen: list[Shown] = []
    for grant, reason in reversed(shown):
        if count <= 0:
            break
        skip = max(0, grant.count - count)
        cut = replace(
            grant,
            claim_id=grant.claim_id + skip,
            count=grant.count - skip,
            offset=grant.offset + skip,
        )
        chosen.append((cut, reason))
        count -= cut.count
    return chosen[::-1]


class _Delays(Struct, frozen=True):
    """The messages of a queue that wait for a time, as a peek needs to know them."""

    state: str
    now_ms: int
    """Store time."""
    schedule: list[tuple[int, int, int]]
    """The first claim id, the number of neighbours, and the due time as store time, of messages that
    wait for a wall time; by claim id.
    """

    def runs(self, bucket_id: int, bucket: Bucket, low: int) -> Iterator[Slots]:
        """Yield the slots of a copied bucket that the peek shows, from slot `low` on."""
        slots = bucket.runs(STATES[self.state], low)
        if STATES[self.state] != AVAILABLE:
            yield from slots
            return
        self._correct(bucket_id, bucket)
        due_ms, is_wanted = bucket.until_ms, self.state == "delayed"
        for start, stop in slots:
            for is_delayed, run in groupby(
                range(start, stop), lambda slot: due_ms[slot] > self.now_ms
            ):
                run_slots = list(run)
                if is_delayed == is_wanted:
                    yield run_slots[0], run_slots[-1] + 1

    def _correct(self, bucket_id: int, bucket: Bucket) -> None:
        """Write due times of wall time into a copied bucket: the wall clock may have been set."""
        begin = bisect_left(self.schedule, (bucket_id,))
        for claim_id, count, due_ms in self.schedule[begin:]:
            slot = claim_id - bucket_id
            if slot >= len(bucket.states):
                break
            for scheduled_slot in range(slot, min(slot + count, len(bucket.states))):
                bucket.until_ms[scheduled_slot] = due_ms


def _read_delays(view: View, query: c.PeekMessages) -> _Delays:
    """Read the due times of messages that wait for a wall time."""
    queue = need_queue(view, query.queue)
    time = view.state.time
    epoch_ms = time.epoch_ms()
    schedule: list[tuple[int, int, int]] = []
    if queue.counts.scheduled and STATES[query.state] == AVAILABLE:
        start, stop = keys.of_queue(keys.SCHEDULE, queue.queue_id)
        for key, value in view.scan(start, stop, limit=SCHEDULE_READ_MAX):
            due_ms, claim_id = keys.due_claim(key)
            schedule.append((claim_id, keys.run_count(value), due_ms - epoch_ms))
    return _Delays(query.state, time.now()[1], sorted(schedule))


def _alike(bucket: Bucket, bucket_id: int, span: Span, reasons: Sequence[str]) -> Iterator[Shown]:
    """Yield neighbouring messages, cut where attempt, time or reason change."""

    def facts(slot: int) -> tuple[int, int, str]:
        return bucket.attempts[slot], bucket.until_ms[slot], reasons[slot]

    slots = range(span.slot, span.slot + span.count)
    for (attempt, until_ms, reason), run in groupby(slots, facts):
        slot, *following = run
        claim_id, offset = bucket_id + slot, span.offset + slot - span.slot
        count = 1 + len(following)
        yield Grant(claim_id, count, attempt, span.log_id, offset, until_ms), reason


def _read(store: Store, queue: str, shown: list[Shown], *, is_done: bool) -> list[Lot]:
    """Read the messages to show; single messages that are neighbours are read together."""
    lots: list[Lot] = []
    for run in _runs(shown):
        together = read_singles(store, queue, run) if len(run) > 1 else []
        lots += together or [
            lot
            for grant, reason in run
            for lot in peek_grant(store, queue, grant, reason, done=is_done)
        ]
    return lots


def _runs(shown: list[Shown]) -> Iterator[list[Shown]]:
    """Yield neighbouring single messages together, and all other grants separately."""
    run: list[Shown] = []
    for grant, reason in shown:
        last = run[-1][0] if run else None
        if last is not None and not (
            last.count == grant.count == 1
            and last.log_id == grant.log_id
            and last.offset + 1 == grant.offset
        ):
            yield run
            run = []
        run.append((grant, reason))
    if run:
        yield run
