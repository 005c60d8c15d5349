"""Placing: gives routed messages claim numbers, and enters them into a lane or the index.

A message that is claimed in number order goes to a lane, where the numbers alone decide the next
claim. A delayed message, or a message of a group, is entered into the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from millstream.format import keys
from millstream.log.model.head import Head
from millstream.queue.model.bucket_changes import Placed, SlotMark
from millstream.queue.model.counts import Counts
from millstream.queue.model.grants import Routed
from millstream.queue.model.queue_changes import Moved
from millstream.queue.model.slots import RoutingMark, Span, Trial
from millstream.queue.model.spec import QueueSpec
from millstream.queue.model.state import APART, Allotment, QueueState
from millstream.queue.rules.interleaving import arrivals_ms
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.repeats import Repeats
from millstream.queue.rules.sources import takes
from millstream.store.commit.transaction import WriteTransaction

_PLAIN = RoutingMark()


class Arrival(Struct, frozen=True, gc=False):
    """Neighbouring messages of a log that are placed in the same way."""

    span: Span
    priority: int = 0
    group: str = ""
    due_ms: int = 0
    """The store time from which the messages are claimable; 0 for now."""
    wall_due_ms: int = 0
    """The wall time from which the messages are claimable; 0 for now."""
    digest: bytes = b""
    """The digest by which deduplication recognises a repeat."""
    past: Sequence[Trial] = ()
    """The earlier attempts at a redriven message."""
    note: bytes | None = None
    """The row of the note of a redriven message."""


def place(ledger: Ledger, routed: list[Routed]) -> int:
    """Place routed messages, unless another caller has placed them; return their number.

    A queue that places the messages of several logs in order places all batches or none: a batch that
    another caller has placed in part may have older messages than the other batches.
    """
    queue = ledger.queue
    accepted = [batch for batch in routed if _goes_on(ledger, batch)]
    if len(accepted) < len(routed):
        ledger.is_overtaken = True
        if queue.spec.in_order:
            return 0
    for batch in accepted:
        head = ledger.tx.entity(keys.head(batch.log_id), Head)
        ledger.counts.lost += head.count(queue.positions.get(batch.log_id, 0), batch.start)
        ledger.counts.unknown += batch.unknown
        ledger.skipped += [(batch.log_id, start, stop) for start, stop in batch.skipped]
        ledger.positions.append((batch.log_id, batch.stop))
    filled = [batch for batch in accepted if batch.spans]
    lane = _lane_of(queue.spec, filled[0]) if len(filled) == 1 else None
    if lane is not None:
        total = _line_up(ledger, lane, filled[0])
    else:
        arrivals = _in_time([list(_arrivals(ledger.tx, queue, batch)) for batch in filled])
        total = _admit_new(ledger, arrivals) if queue.spec.dedup_by else admit(ledger, arrivals)
    ledger.counts.placed += total
    return total


def _goes_on(ledger: Ledger, batch: Routed) -> bool:
    """Return whether a batch begins at the queue's position in its log.

    A log that was set aside may have been looked at before, under the name of the source.
    """
    queue, head = ledger.queue, ledger.tx.entity(keys.head(batch.log_id), Head)
    is_source = not head.former_name or takes(queue.name, queue.spec, head.name)
    return is_source and head.next_at(queue.positions.get(batch.log_id, 0)) == batch.start


def _admit_new(ledger: Ledger, arrivals: list[Arrival]) -> int:
    """Drop repeats, admit the other messages, and remember their digests; return their number."""
    repeats = Repeats(ledger.tx, ledger.queue)
    new_arrivals = [
        arrival
        for arrival in arrivals
        if not arrival.digest or not repeats.has(arrival.digest, arrival.span.at_ms)
    ]
    ledger.counts.duplicates += len(arrivals) - len(new_arrivals)
    total = admit(ledger, new_arrivals)
    repeats.remember(ledger.digests)
    return total


def _in_time(arrivals_by_log: list[list[Arrival]]) -> list[Arrival]:
    """Merge the messages of several logs by append time; the order within a log stays."""
    logs = [arrivals for arrivals in arrivals_by_log if arrivals]
    if len(logs) == 1:
        return logs[0]
    timed = [
        pair
        for arrivals in logs
        for pair in zip(arrivals_ms(arrival.span for arrival in arrivals), arrivals, strict=True)
    ]
    timed.sort(key=itemgetter(0))
    return [arrival for _, arrival in timed]


def admit(ledger: Ledger, arrivals: Iterable[Arrival]) -> int:
    """Give claim numbers to messages and make them wait; return their number."""
    lanes: dict[int, list[Arrival]] = {}
    spec = ledger.queue.spec
    for arrival in arrivals:
        if arrival.group and spec.group_by:
            # A delayed message of an ordered group keeps its position in the group.
            is_indexed = not spec.passes or (arrival.due_ms and not spec.ordered)
        else:
            is_indexed = bool(arrival.due_ms or arrival.wall_due_ms)
        lane = arrival.priority if spec.priority_by else 0
        lanes.setdefault(APART if is_indexed else lane, []).append(arrival)
    return sum(_fill(ledger, lane, lane_arrivals) for lane, lane_arrivals in lanes.items())


def _fill(ledger: Ledger, lane: int, arrivals: list[Arrival]) -> int:
    tx, queue = ledger.tx, ledger.queue
    count = sum(arrival.span.count for arrival in arrivals)
    allotted = queue.allot(lane, count)
    following = iter(arrivals)
    current: Arrival | None = next(following, None)
    for start, stop in allotted.ranges:
        for bucket_id, (first, end) in queue.pieces(start, stop):
            ledger.change_alive(bucket_id, end - first)
            spans: list[Span] = []
            marks: dict[int, SlotMark] = {}
            past: dict[int, list[Trial]] = {}
            dues: dict[int, int] = {}
            delays: list[tuple[int, int, int]] = []
            slot = first
            while slot < end:
                assert current is not None
                size = min(current.span.count, end - slot)
                span = current.span
                _append(spans, span.cut(0, size, slot))
                if current.digest:  # messages with a digest are placed one by one
                    ledger.digests.append((current.digest, span.at_ms, bucket_id + slot))
                if current.past:
                    past[slot] = list(current.past)
                if current.note is not None:
                    tx.put(keys.note(queue.queue_id, bucket_id + slot), current.note)
                if lane == APART:
                    _enter(ledger, bucket_id, slot, size, current, marks)
                elif current.group and queue.spec.group_by:
                    mark = current.priority, current.group
                    marks.update(dict.fromkeys(range(slot, slot + size), mark))
                    if current.due_ms > tx.store_ms:
                        _delay(ledger, bucket_id, slot, size, current.due_ms, dues)
                if (due_ms := _store_due_ms(tx, current)) and slot not in dues:
                    delays.append((slot, slot + size, due_ms))
                slot += size
                remaining = span.count - size
                current = (
                    replace(current, span=span.cut(size, remaining))
                    if remaining
                    else next(following, None)
                )
            ledger.change_bucket(bucket_id, Placed(spans, lane, marks, past, dues, delays))
    _filled(ledger, lane, allotted, count)
    return count


def _filled(ledger: Ledger, lane: int, allotted: Allotment, count: int) -> None:
    """Write the claim numbers of `count` messages into the queue's state."""
    ledger.counts.available += count
    placed = []
    counts = Counts()
    if lane != APART:
        counts.fresh = count
        placed = [(lane, start, stop) for start, stop in allotted.ranges]
    free = [allotted.free]
    moved = Moved(ledger.tx.store_ms, counts, next=allotted.next, free=free, placed=placed)
    ledger.tx.change(ledger.key, moved)


def _lane_of(spec: QueueSpec, routed: Routed) -> int | None:
    """Return the lane in which all messages of a batch go as they are; None for messages with
    different priorities, delays or digests, or with groups that do not wait in a lane.
    """
    if spec.delay_ms:
        return None
    if not routed.marks:
        return 0
    lane, passes = routed.marks[0].priority, spec.passes
    for mark in {id(mark): mark for mark in routed.marks}.values():  # most messages share marks
        if mark.priority != lane or mark.digest or (mark.group and not passes):
            return None
        if mark.delay_ms is not None or mark.due_ms is not None:
            return None
    return lane if spec.priority_by else 0


def _line_up(ledger: Ledger, lane: int, routed: Routed) -> int:
    """Place the messages of a batch in one lane: as `admit`, without an arrival for each group.

    A message of a group takes 1 µs instead of 4 (2026-11).
    """
    queue = ledger.queue
    count = sum(span.count for span in routed.spans)
    allotted = queue.allot(lane, count)
    following = iter(routed.spans)
    marked = iter(routed.marks or ()) if queue.spec.group_by else iter(())
    cut_off: Span | None = None
    for start, stop in allotted.ranges:
        for bucket_id, (first, end) in queue.pieces(start, stop):
            ledger.change_alive(bucket_id, end - first)
            spans, cut_off = _slotted(cut_off, following, first, end)
            marks = _slot_marks(lane, range(first, end), marked)
            ledger.change_bucket(bucket_id, Placed(spans, lane, marks))
    _filled(ledger, lane, allotted, count)
    return count


def _slot_marks(lane: int, slots: range, marked: Iterator[RoutingMark]) -> dict[int, SlotMark]:
    """Return the marks of slots whose messages have a group; messages mostly share their marks."""
    marks = list(islice(marked, len(slots)))
    shared = {id(mark): (lane, mark.group) for mark in marks}
    slot_marks = dict(zip(slots, map(shared.__getitem__, map(id, marks)), strict=False))
    if all(group for _, group in shared.values()):
        return slot_marks
    return {slot: mark for slot, mark in slot_marks.items() if mark[1]}


def _slotted(
    cut_off: Span | None, following: Iterator[Span], slot: int, end: int
) -> tuple[list[Span], Span | None]:
    """Fill the slots up to `end` with spans, neighbours joined; return the cut-off end of the last
    span.
    """
    spans: list[Span] = []
    behind = behind_id = behind_ms = behind_log = -1
    while slot < end:
        span = next(following) if cut_off is None else cut_off
        size, offset, message_id, at_ms = span.count, span.offset, span.message_id, span.at_ms
        log_id, space = span.log_id, end - slot
        cut_off = None
        if size > space:
            cut_off = span.cut(space, size - space)
            size = space
        if (offset, message_id, at_ms, log_id) == (behind, behind_id, behind_ms, behind_log):
            last = spans[-1]
            spans[-1] = replace(last, count=last.count + size)
        else:
            spans.append(Span(slot, size, log_id, offset, message_id, at_ms))
        behind, behind_id, behind_ms, behind_log = offset + size, message_id + size, at_ms, log_id
        slot += size
    return spans, cut_off


def _append(spans: list[Span], span: Span) -> None:
    """Add a span, or extend the last span."""
    if spans:
        last = spans[-1]
        skip = last.count
        if (
            last.offset + skip == span.offset
            and last.slot + skip == span.slot
            and last.message_id + skip == span.message_id
            and last.log_id == span.log_id
            and last.at_ms == span.at_ms
        ):
            spans[-1] = replace(last, count=skip + span.count)
            return
    spans.append(span)


def _enter(
    ledger: Ledger,
    bucket_id: int,
    slot: int,
    count: int,
    arrival: Arrival,
    marks: dict[int, SlotMark],
) -> None:
    """Enter messages into the index: messages of groups singly, all others as a run."""
    queue = ledger.queue
    priority, group = arrival.priority, arrival.group
    each = 1 if group and queue.spec.group_by else count
    if priority or group:
        marks.update(dict.fromkeys(range(slot, slot + count), (priority, group)))
    for claim_id in range(bucket_id + slot, bucket_id + slot + count, each):
        if arrival.wall_due_ms:
            key = keys.schedule(queue.queue_id, arrival.wall_due_ms, claim_id)
            ledger.tx.put(key, keys.run_value(each))
            ledger.counts.scheduled += each
        else:
            ledger.index.enter(
                claim_id,
                each,
                priority=priority,
                group=group,
                at_ms=arrival.span.at_ms,
                due_ms=arrival.due_ms,
            )


def _store_due_ms(tx: WriteTransaction, arrival: Arrival) -> int:
    """Return the store time from which messages are claimable; 0 for their append time.

    A redriven message is claimable from the redrive on, whatever its age.
    """
    if arrival.wall_due_ms:
        return tx.store_ms + arrival.wall_due_ms - tx.wall_ms
    return arrival.due_ms or (tx.store_ms if arrival.past else 0)


def _delay(
    ledger: Ledger, bucket_id: int, slot: int, count: int, due_ms: int, dues: dict[int, int]
) -> None:
    """List messages of a lane as not due yet; the claim numbers stay."""
    for delayed_slot in range(slot, slot + count):
        dues[delayed_slot] = due_ms
        ledger.index.wait(bucket_id + delayed_slot, due_ms)


def _arrivals(tx: WriteTransaction, queue: QueueState, routed: Routed) -> Iterator[Arrival]:
    """Yield the messages to place, in the order of their log."""
    if routed.marks is None:
        arrivals = map(Arrival, routed.spans)
        if not queue.spec.delay_ms:
            yield from arrivals
        else:
            yield from (_due(tx, queue, arrival, _PLAIN) for arrival in arrivals)
        return
    marks = iter(routed.marks)
    for span in routed.spans:
        skip = 0
        for mark, count in _alike(list(islice(marks, span.count))):
            part_span = span if count == span.count else span.cut(skip, count)
            arrival = Arrival(part_span, mark.priority, mark.group, digest=mark.digest)
            yield _due(tx, queue, arrival, mark)
            skip += count


def _alike(marks: Sequence[RoutingMark]) -> Iterator[tuple[RoutingMark, int]]:
    """Yield marks with the number of neighbours that share them; marks with a digest are never
    shared.
    """
    last, count = marks[0], 0
    for mark in marks:
        if mark != last or mark.digest:
            if count:
                yield last, count
            last, count = mark, 0
        count += 1
    yield last, count


def _due(tx: WriteTransaction, queue: QueueState, arrival: Arrival, mark: RoutingMark) -> Arrival:
    """Set the due time of messages; a delay counts from the append."""
    if mark.due_ms is not None:
        if mark.due_ms <= tx.wall_ms:
            return arrival
        if arrival.group and queue.spec.group_by:
            return replace(arrival, due_ms=tx.store_ms + mark.due_ms - tx.wall_ms)
        return replace(arrival, wall_due_ms=mark.due_ms)
    delay_ms = queue.spec.delay_ms if mark.delay_ms is None else mark.delay_ms
    if not delay_ms:
        return arrival
    waited_ms = max(0, tx.wall_ms - (arrival.span.at_ms or tx.wall_ms))
    if waited_ms >= delay_ms:
        return arrival
    return replace(arrival, due_ms=tx.store_ms + delay_ms - waited_ms)
