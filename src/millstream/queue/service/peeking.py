"""Peeking: messages in a state, in the order of their claim ids, without claiming them.

Buckets are looked at a few at a time. Only copies of those that hold something are taken under the
mutex; what a peek shows is worked out and read outside it. So each bucket is shown as of one commit,
and between two buckets the queue may move on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.format.ids import NUMBER_BITS, capacity_of, make_bucket_id, split_id
from millstream.queue import commands as c
from millstream.queue.model.attempts import reasons_of
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.message import Lot
from millstream.queue.model.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT, Span
from millstream.queue.model.state import QueueState
from millstream.queue.rules.finding import find_bucket, need_queue
from millstream.queue.service.consuming import route_ahead
from millstream.queue.service.reading import peek_grant, read_singles
from millstream.store.state.hypothetical import Reading
from millstream.store.state.view import View
from millstream.store.store import Store

PEEK_MAX = 10_000
BUCKETS_PER_LOOK = 100
"""Buckets that are looked at under the mutex in one go."""

COPIES_PER_LOOK = 16
"""Buckets that are copied under the mutex in one go."""

STATES = {"available": AVAILABLE, "in_flight": IN_FLIGHT, "done": DONE, "failed": FAILED}

Shown = tuple[c.Grant, str]
"""Messages to be shown, as if they were granted, and why their last attempt ended so."""


def peek_messages(store: Store, query: c.PeekMessages) -> list[Lot]:
    """Messages in a state, in the order of their claim ids, without claiming them."""
    if query.state not in STATES:
        raise InvalidInput(f"a state is one of {', '.join(STATES)}, not {query.state!r}")
    if not 0 <= query.count <= PEEK_MAX:
        raise InvalidInput(f"a peek is at up to {PEEK_MAX:,} messages, not {query.count:,}")
    reading = Reading(store)
    if query.state == "available" and query.route:
        route_ahead(reading, query.queue, query.count)
    return _read(store, query.queue, _find(reading, query), is_done=query.state == "done")


def copies_of(
    reading: Reading, name: str, wanted: str | None, first: int
) -> Iterator[tuple[int, Bucket]]:
    """Copies of the buckets with messages in a state, or in any, from a claim number on, in order."""
    position: int | None = first
    while position is not None:
        look = partial(_copies, name=name, wanted=wanted, first=position)
        page, position = reading.view(look)
        yield from page


def _copies(
    view: View, *, name: str, wanted: str | None, first: int
) -> tuple[list[tuple[int, Bucket]], int | None]:
    """Some copies, and the claim number to go on from; None at the end."""
    queue = need_queue(view, name)
    found: list[tuple[int, Bucket]] = []
    for looked_at, bucket_id in enumerate(find_buckets(view, queue, wanted, first)):
        if looked_at == BUCKETS_PER_LOOK or len(found) == COPIES_PER_LOOK:
            return found, split_id(bucket_id)[1]
        bucket = find_bucket(view, queue, bucket_id)
        if wanted is None or bucket.any_are(STATES[wanted]):
            found.append((bucket_id, bucket.copied()))
    return found, None


def find_buckets(view: View, queue: QueueState, wanted: str | None, first: int) -> list[int]:
    """The next buckets that may hold messages in a state, by claim number; one more than a look's."""
    limit = BUCKETS_PER_LOOK + 1
    if wanted not in (None, "done"):
        ahead = [one for one in queue.alive if _number(one) + capacity_of(one >> 60) > first]
        return heapq.nsmallest(limit, ahead, key=_number)
    found: list[int] = []
    for began, end, exponent in queue.eras:
        capacity = capacity_of(exponent)
        low = max(began, first) // capacity * capacity
        high = end if end >= 0 else (1 << NUMBER_BITS) - capacity
        if low < high and len(found) < limit:
            start = keys.bucket(queue.queue_id, make_bucket_id(exponent, low))
            stop = keys.bucket(queue.queue_id, (exponent << NUMBER_BITS) + high)
            page = view.find(start, stop, limit=limit - len(found))
            found += [keys.pair(key)[1] for key in page]
    return found


def _number(bucket_id: int) -> int:
    return split_id(bucket_id)[1]


def _find(reading: Reading, query: c.PeekMessages) -> list[Shown]:
    """The messages that a peek is to show."""
    first = 0 if query.after < 0 else split_id(query.after)[1] + 1
    found: list[Shown] = []
    left = query.count
    buckets = copies_of(reading, query.queue, query.state, first) if left else ()
    for bucket_id, bucket in buckets:
        low = max(0, first - _number(bucket_id))
        reasons = reasons_of(bucket, 0, len(bucket.states))
        for start, stop in bucket.runs(STATES[query.state], low):
            for span in bucket.sources(start, min(stop, start + left)):
                found += _alike(bucket, bucket_id, span, reasons)
                left -= span.count
            if left <= 0:
                return found
    if not query.count:
        reading.view(lambda view: need_queue(view, query.queue))
    return found


def _alike(bucket: Bucket, bucket_id: int, span: Span, reasons: Sequence[str]) -> Iterator[Shown]:
    """Neighbouring messages, cut where more than their place differs."""

    def facts(slot: int) -> tuple[int, int, str]:
        return bucket.attempts[slot], bucket.until_ms[slot], reasons[slot]

    slots = range(span.slot, span.slot + span.count)
    for (attempt, until_ms, reason), some in groupby(slots, facts):
        slot, *others = some
        claim_id, offset = bucket_id + slot, span.offset + slot - span.slot
        count = 1 + len(others)
        yield c.Grant(claim_id, count, attempt, span.log_id, offset, until_ms), reason


def _read(store: Store, queue: str, found: list[Shown], *, is_done: bool) -> list[Lot]:
    """What a peek shows, with payloads; single messages that lie side by side are read together."""
    lots: list[Lot] = []
    for run in _runs(found):
        together = read_singles(store, queue, run) if len(run) > 1 else []
        lots += together or [
            lot
            for grant, reason in run
            for lot in peek_grant(store, queue, grant, reason, done=is_done)
        ]
    return lots


def _runs(found: list[Shown]) -> Iterator[list[Shown]]:
    """Single messages that are neighbours in a log together, every other grant by itself."""
    run: list[Shown] = []
    for grant, reason in found:
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
