"""Placing: messages get claim numbers, and their place among those that wait.

A message that waits in its turn goes to a lane: there the numbers alone say what comes next. One
that is delayed, or belongs to a group, is entered into the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from millstream.format import keys
from millstream.format.encodings import encode_u64
from millstream.log.head import Head
from millstream.queue import commands as c
from millstream.queue.bucket import Placed, SlotMark
from millstream.queue.index import Index
from millstream.queue.slots import Mark, Span
from millstream.queue.state import APART, Counts, Moved, QueueState
from millstream.store.transaction import Transaction

FORGOTTEN_PER_PLACED = 2
"""For every message that is remembered against repeats, so many old ones are forgotten."""

_PLAIN = Mark()


class Arrival(NamedTuple):
    """Neighbouring messages of a log that are to be placed alike."""

    span: Span
    priority: int = 0
    group: str = ""
    due_ms: int = 0
    """Store time before which they cannot be claimed; 0 for none."""
    wall_due_ms: int = 0
    """The same as wall time."""


def place(tx: Transaction, key: bytes, queue: QueueState, routed: c.Routed, index: Index) -> int:
    """Take over what was routed, if nobody has routed the same meanwhile; how many messages."""
    dropped = tx.entity(keys.head(routed.log_id), Head).dropped
    if max(queue.positions.get(routed.log_id, 0), dropped) != routed.start:
        return 0
    arrivals = list(_arrivals(tx, queue, routed))
    total = admit(tx, key, queue, arrivals, index)
    repeats = sum(span.count for span in routed.spans) - total
    tx.change(
        key,
        Moved(
            tx.store_ms,
            Counts(placed=total, duplicates=repeats),
            positions=[(routed.log_id, routed.stop)],
        ),
    )
    return total


def admit(
    tx: Transaction, key: bytes, queue: QueueState, arrivals: Iterable[Arrival], index: Index
) -> int:
    """Give claim numbers to messages and let them wait; answers how many."""
    lanes: dict[int, list[Arrival]] = {}
    for arrival in arrivals:
        apart = arrival.due_ms or arrival.wall_due_ms or (arrival.group and queue.spec.group_by)
        lanes.setdefault(APART if apart else arrival.priority, []).append(arrival)
    total = 0
    for lane, found in lanes.items():
        total += _fill(tx, key, queue, lane, found, index)
    return total


def _fill(
    tx: Transaction, key: bytes, queue: QueueState, lane: int, found: list[Arrival], index: Index
) -> int:
    count = sum(arrival.span.count for arrival in found)
    allotted = queue.allot(lane, count)
    rest = iter(found)
    left: Arrival | None = next(rest, None)
    alive = []
    counts = Counts(available=count)
    for start, stop in allotted.ranges:
        for bucket_id, (first, end) in queue.pieces(start, stop):
            alive.append((bucket_id, end - first))
            spans: list[Span] = []
            marks: dict[int, SlotMark] = {}
            slot = first
            while slot < end:
                assert left is not None
                some = min(left.span.count, end - slot)
                span = left.span
                _append(spans, _cut(span, slot, 0, some))
                if lane == APART:
                    _enter(tx, queue, bucket_id, slot, some, left, marks, counts, index)
                slot += some
                more = span.count - some
                left = left._replace(span=_cut(span, 0, some, more)) if more else next(rest, None)
            change = Placed(queue.name, spans, lane, marks)
            tx.change(keys.bucket(queue.queue_id, bucket_id), change)
    placed = []
    if lane != APART:
        counts.fresh = count
        placed = [(lane, start, stop) for start, stop in allotted.ranges]
    tx.change(
        key,
        Moved(
            tx.store_ms,
            counts,
            next=allotted.next,
            shelves=[allotted.shelf],
            placed=placed,
            alive=alive,
        ),
    )
    return count


def _cut(span: Span, slot: int, skip: int, count: int) -> Span:
    return Span(slot, count, span.log_id, span.offset + skip, span.message_id + skip, span.at_ms)


def _append(spans: list[Span], span: Span) -> None:
    """Add a span, or make the last one longer."""
    if spans:
        last = spans[-1]
        skip = last.count
        if _cut(last, span.slot, skip, span.count) == span and last.slot + skip == span.slot:
            spans[-1] = replace(last, count=skip + span.count)
            return
    spans.append(span)


def _enter(
    tx: Transaction,
    queue: QueueState,
    bucket_id: int,
    slot: int,
    count: int,
    arrival: Arrival,
    marks: dict[int, SlotMark],
    counts: Counts,
    index: Index,
) -> None:
    """Enter messages into the index, one by one."""
    priority, group = arrival.priority, arrival.group
    for one in range(slot, slot + count):
        claim_id = queue.claim_id(bucket_id, one)
        if priority or group:
            marks[one] = (priority, group)
        if arrival.wall_due_ms:
            tx.put(keys.schedule(queue.queue_id, arrival.wall_due_ms, claim_id), b"")
            counts.scheduled += 1
        else:
            index.enter(
                claim_id,
                priority=priority,
                group=group,
                at_ms=arrival.span.at_ms,
                due_ms=arrival.due_ms,
            )


def _arrivals(tx: Transaction, queue: QueueState, routed: c.Routed) -> Iterator[Arrival]:
    if routed.marks is None:
        for span in routed.spans:
            yield _due(tx, queue, Arrival(span), _PLAIN)
        return
    marks = iter(routed.marks)
    repeats = _Repeats(tx, queue)
    for span in routed.spans:
        for skip in range(span.count):
            mark = next(marks)
            if mark.digest and repeats.has(mark.digest):
                continue
            arrival = Arrival(_cut(span, 0, skip, 1), mark.priority, mark.group)
            yield _due(tx, queue, arrival, mark)
    repeats.remember()


def _due(tx: Transaction, queue: QueueState, arrival: Arrival, mark: Mark) -> Arrival:
    """When messages are due: a delay counts from when they were appended."""
    if mark.due_ms is not None:
        if mark.due_ms <= tx.wall_ms:
            return arrival
        if arrival.group and queue.spec.group_by:
            return arrival._replace(due_ms=tx.store_ms + mark.due_ms - tx.wall_ms)
        return arrival._replace(wall_due_ms=mark.due_ms)
    delay_ms = queue.spec.delay_ms if mark.delay_ms is None else mark.delay_ms
    if not delay_ms:
        return arrival
    waited_ms = max(0, tx.wall_ms - (arrival.span.at_ms or tx.wall_ms))
    if waited_ms >= delay_ms:
        return arrival
    return arrival._replace(due_ms=tx.store_ms + delay_ms - waited_ms)


class _Repeats:
    """Messages that were seen lately, by digest."""

    def __init__(self, tx: Transaction, queue: QueueState) -> None:
        self._tx = tx
        self._queue = queue
        self._new: set[bytes] = set()

    def has(self, digest: bytes) -> bool:
        """Whether one with this digest was seen; if not, it is now."""
        tx = self._tx
        if digest in self._new:
            return True
        found = tx.get(keys.seen(self._queue.queue_id, digest))
        if found is not None and int.from_bytes(found, "little") > tx.store_ms:
            return True
        self._new.add(digest)
        return False

    def remember(self) -> None:
        """Write what is new, and forget what is over."""
        if not self._new:
            return
        tx, queue_id = self._tx, self._queue.queue_id
        until_ms = tx.store_ms + self._queue.spec.dedup_window_ms
        start, stop = keys.seen_until(queue_id, 0, b""), keys.seen_until(queue_id, tx.store_ms, b"")
        limit = FORGOTTEN_PER_PLACED * len(self._new)
        for key, _ in tx.state.scan(start, stop, tx.writer, limit=limit):
            tx.drop(key)
            digest, seen = key[-16:], keys.seen(queue_id, key[-16:])
            if digest not in self._new and tx.get(seen) == encode_u64(keys.seen_time(key)):
                tx.drop(seen)
        for digest in self._new:
            tx.put(keys.seen(queue_id, digest), encode_u64(until_ms))
            tx.put(keys.seen_until(queue_id, until_ms, digest), b"")
