"""Placing: messages get claim numbers, and their place among those that wait.

A message that waits in its turn goes to a lane: there the numbers alone say what comes next. One
that is delayed, or belongs to a group, is entered into the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from millstream.format import keys
from millstream.format.encodings import encode_u64
from millstream.log.model.head import Head
from millstream.queue import commands as c
from millstream.queue.model.bucket_changes import Placed, SlotMark
from millstream.queue.model.counts import Counts
from millstream.queue.model.queue_changes import Moved
from millstream.queue.model.slots import RoutingMark, Span, Trial
from millstream.queue.model.state import APART, Allotment, QueueState
from millstream.queue.rules.interleaving import arrivals_ms
from millstream.queue.rules.ledger import Ledger
from millstream.store.commit.transaction import WriteTransaction

FORGOTTEN_PER_PLACED = 2
"""For every message that is remembered against repeats, so many old ones are forgotten."""

TIMES_KEPT = 8
"""Of messages with one digest that are no repeats of each other, so many are remembered."""

_PLAIN = RoutingMark()


class Arrival(Struct, frozen=True, gc=False):
    """Neighbouring messages of a log that are to be placed alike."""

    span: Span
    priority: int = 0
    group: str = ""
    due_ms: int = 0
    """Store time before which they cannot be claimed; 0 for none."""
    wall_due_ms: int = 0
    """Wall time before which they cannot be claimed; 0 for none."""
    digest: bytes = b""
    """By which a repeat is known."""
    past: Sequence[Trial] = ()
    """The earlier attempts at a message that is redriven."""


def place(ledger: Ledger, routed: list[c.Routed]) -> int:
    """Take over what was routed, unless another caller has done so; how many messages."""
    tx, queue = ledger.tx, ledger.queue
    came: list[c.Routed] = []
    for found in routed:
        head = tx.entity(keys.head(found.log_id), Head)
        position = queue.positions.get(found.log_id, 0)
        if head.next_at(position) == found.start and head.setbacks == found.setbacks:
            ledger.counts.lost += head.count(position, found.start)
            ledger.counts.unknown += found.unknown
            ledger.skipped += [(found.log_id, start, stop) for start, stop in found.skipped]
            came.append(found)
            ledger.positions.append((found.log_id, found.stop))
        else:
            ledger.is_overtaken = True
    filled = [found for found in came if found.spans]
    if len(filled) == 1 and filled[0].marks is None and not queue.spec.delay_ms:
        total = _line_up(ledger, filled[0].spans)
    else:
        arrivals = _in_time([list(_arrivals(tx, queue, found)) for found in filled])
        if queue.spec.dedup_by:
            arrivals = _new(ledger, arrivals)
        total = admit(ledger, arrivals)
    ledger.counts.placed += total
    return total


def _new(ledger: Ledger, arrivals: list[Arrival]) -> list[Arrival]:
    """Messages without those that are repeats; what is left is known from now on."""
    repeats = _Repeats(ledger.tx, ledger.queue)
    kept = [one for one in arrivals if not one.digest or not repeats.has(one)]
    ledger.counts.duplicates += len(arrivals) - len(kept)
    repeats.remember()
    return kept


def _in_time(came: list[list[Arrival]]) -> list[Arrival]:
    """What came in several logs, by when; within a log the order stays, whatever its clock said."""
    logs = [some for some in came if some]
    if len(logs) == 1:
        return logs[0]
    timed = [
        pair
        for some in logs
        for pair in zip(arrivals_ms(one.span for one in some), some, strict=True)
    ]
    timed.sort(key=itemgetter(0))
    return [arrival for _, arrival in timed]


def admit(ledger: Ledger, arrivals: Iterable[Arrival]) -> int:
    """Give claim numbers to messages and let them wait; answers how many."""
    lanes: dict[int, list[Arrival]] = {}
    spec = ledger.queue.spec
    for arrival in arrivals:
        if arrival.group and spec.group_by:
            # A delayed one of an ordered group keeps its place among the others of it.
            apart = not spec.passes or (arrival.due_ms and not spec.ordered)
        else:
            apart = bool(arrival.due_ms or arrival.wall_due_ms)
        lane = arrival.priority if spec.priority_by else 0
        lanes.setdefault(APART if apart else lane, []).append(arrival)
    return sum(_fill(ledger, lane, found) for lane, found in lanes.items())


def _fill(ledger: Ledger, lane: int, found: list[Arrival]) -> int:
    tx, queue = ledger.tx, ledger.queue
    count = sum(arrival.span.count for arrival in found)
    allotted = queue.allot(lane, count)
    rest = iter(found)
    left: Arrival | None = next(rest, None)
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
                assert left is not None
                some = min(left.span.count, end - slot)
                span = left.span
                _append(spans, span.cut(0, some, slot))
                if left.past:
                    past[slot] = list(left.past)
                if lane == APART:
                    _enter(ledger, bucket_id, slot, some, left, marks)
                elif left.group and queue.spec.group_by:
                    marks.update(dict.fromkeys(range(slot, slot + some), (0, left.group)))
                    if left.due_ms > tx.store_ms:
                        _delay(ledger, bucket_id, slot, some, left.due_ms, dues)
                if (due_ms := _store_due_ms(tx, left)) and slot not in dues:
                    delays.append((slot, slot + some, due_ms))
                slot += some
                more = span.count - some
                left = replace(left, span=span.cut(some, more)) if more else next(rest, None)
            ledger.change_bucket(bucket_id, Placed(spans, lane, marks, past, dues, delays))
    _filled(ledger, lane, allotted, count)
    return count


def _filled(ledger: Ledger, lane: int, allotted: Allotment, count: int) -> None:
    """Note that so many messages have got these claim numbers."""
    ledger.counts.available += count
    placed = []
    counts = Counts()
    if lane != APART:
        counts.fresh = count
        placed = [(lane, start, stop) for start, stop in allotted.ranges]
    free = [allotted.free]
    moved = Moved(ledger.tx.store_ms, counts, next=allotted.next, free=free, placed=placed)
    ledger.tx.change(ledger.key, moved)


def _line_up(ledger: Ledger, found: Sequence[Span]) -> int:
    """Let messages wait that only wait for their turn: as `admit` does, without a look at each."""
    queue = ledger.queue
    count = sum(span.count for span in found)
    allotted = queue.allot(0, count)
    rest = iter(found)
    left: Span | None = None
    for start, stop in allotted.ranges:
        for bucket_id, (first, end) in queue.pieces(start, stop):
            ledger.change_alive(bucket_id, end - first)
            spans, left = _slotted(left, rest, first, end)
            ledger.change_bucket(bucket_id, Placed(spans))
    _filled(ledger, 0, allotted, count)
    return count


def _slotted(
    left: Span | None, rest: Iterator[Span], slot: int, end: int
) -> tuple[list[Span], Span | None]:
    """Spans for the slots up to `end`, neighbours joined; what is left of the last one taken."""
    spans: list[Span] = []
    behind = behind_id = behind_ms = behind_log = -1
    while slot < end:
        span = next(rest) if left is None else left
        some, offset, message_id, at_ms = span.count, span.offset, span.message_id, span.at_ms
        log_id, room = span.log_id, end - slot
        left = None
        if some > room:
            left = span.cut(room, some - room)
            some = room
        if (offset, message_id, at_ms, log_id) == (behind, behind_id, behind_ms, behind_log):
            last = spans[-1]
            spans[-1] = replace(last, count=last.count + some)
        else:
            spans.append(Span(slot, some, log_id, offset, message_id, at_ms))
        behind, behind_id, behind_ms, behind_log = offset + some, message_id + some, at_ms, log_id
        slot += some
    return spans, left


def _append(spans: list[Span], span: Span) -> None:
    """Add a span, or make the last one longer."""
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
    """Enter messages into the index: those of a group one by one, others side by side as one."""
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
    """The store time from which messages can be claimed; 0 if that is since they were appended.

    A message that had failed can be claimed from when it is driven again, however old it is.
    """
    if arrival.wall_due_ms:
        return tx.store_ms + arrival.wall_due_ms - tx.wall_ms
    return arrival.due_ms or (tx.store_ms if arrival.past else 0)


def _delay(
    ledger: Ledger, bucket_id: int, slot: int, count: int, due_ms: int, dues: dict[int, int]
) -> None:
    """Note that messages in a lane are not due yet: each is listed, and keeps its place."""
    for one in range(slot, slot + count):
        dues[one] = due_ms
        ledger.index.wait(bucket_id + one, due_ms)


def _arrivals(tx: WriteTransaction, queue: QueueState, routed: c.Routed) -> Iterator[Arrival]:
    """What is to be placed, in the order of its log."""
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
            some = span if count == span.count else span.cut(skip, count)
            arrival = Arrival(some, mark.priority, mark.group, digest=mark.digest)
            yield _due(tx, queue, arrival, mark)
            skip += count


def _alike(marks: Sequence[RoutingMark]) -> Iterator[tuple[RoutingMark, int]]:
    """Marks, each with how many neighbours have it; one that repeats are known by stands alone."""
    last, count = marks[0], 0
    for mark in marks:
        if mark != last or mark.digest:
            if count:
                yield last, count
            last, count = mark, 0
        count += 1
    yield last, count


def _due(tx: WriteTransaction, queue: QueueState, arrival: Arrival, mark: RoutingMark) -> Arrival:
    """When messages are due: a delay counts from when they were appended."""
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


class _Repeats:
    """Messages that were appended lately, by digest."""

    def __init__(self, tx: WriteTransaction, queue: QueueState) -> None:
        self._tx = tx
        self._queue = queue
        self._known: dict[bytes, list[int]] = {}
        """Digests → until when a repeat of each message is one, by the times of appends."""
        self._new: list[tuple[int, bytes]] = []
        self._first_ms = 2**62
        """When the first of the messages was appended: how far routing has come."""

    def has(self, arrival: Arrival) -> bool:
        """Whether it is a repeat of one within the window; if not, it is known from now on."""
        digest, at_ms = arrival.digest, arrival.span.at_ms
        window_ms = self._queue.spec.dedup_window_ms
        self._first_ms = min(self._first_ms, at_ms)
        known = self._known.get(digest)
        if known is None:
            found = self._tx.get(keys.seen(self._queue.queue_id, digest))
            known = self._known[digest] = _times(found)
        # A log that came late, by a sync, may hold what is older than what was seen.
        if any(until_ms - 2 * window_ms < at_ms < until_ms for until_ms in known):
            return True
        known.append(at_ms + window_ms)
        self._new.append((at_ms + window_ms, digest))
        return False

    def remember(self) -> None:
        """Write what is new, and forget what is over.

        What was appended a window before what is routed now can have no repeats any more, however
        late it is routed.
        """
        if not self._new:
            return
        tx, queue_id, known = self._tx, self._queue.queue_id, self._known
        over_ms = self._first_ms - self._queue.spec.dedup_window_ms
        changed = {digest for _, digest in self._new}
        start = keys.seen_until(queue_id, 0, b"")
        stop = keys.seen_until(queue_id, max(0, over_ms), b"")
        limit = FORGOTTEN_PER_PLACED * len(self._new)
        for key, _ in tx.scan(start, stop, limit=limit):
            tx.erase(key)
            digest, until_ms = key[-16:], keys.seen_time(key)
            if digest not in known:
                known[digest] = _times(tx.get(keys.seen(queue_id, digest)))
            if until_ms in known[digest]:
                known[digest].remove(until_ms)
                changed.add(digest)
        for digest in changed:
            seen = keys.seen(queue_id, digest)
            if times := sorted(known[digest])[-TIMES_KEPT:]:
                tx.put(seen, b"".join(map(encode_u64, times)))
            else:
                tx.erase(seen)
        for until_ms, digest in self._new:
            tx.put(keys.seen_until(queue_id, until_ms, digest), b"")


def _times(value: bytes | None) -> list[int]:
    """Until when repeats of messages with one digest are such, by the times of appends."""
    found = value or b""
    return [int.from_bytes(found[at : at + 8], "little") for at in range(0, len(found), 8)]
