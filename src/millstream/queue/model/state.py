"""The state of a queue besides its messages: spec, positions, lanes, free numbers and counters.

No claim number is given twice. A queue takes numbers bucket by bucket, and a bucket belongs to a
single lane, so messages of equal priority are neighbours. A plain queue has only lane 0. The ranges
of a lane are the numbers that were routed and never claimed; these messages are claimed in number
order. Messages that an index finds (groups, delays) are numbered in the lane `APART`, which has no
ranges. `busy` maps buckets with messages in flight to a time before which no lease in them ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple, Self

from msgspec import field

from millstream.format.ids import (
    CAPACITIES,
    NUMBER_BITS,
    capacity_of,
    make_bucket_id,
    split_id,
)
from millstream.queue.model.counts import Counts, Rates
from millstream.queue.model.queue_changes import (
    Advanced,
    Arrived,
    ArrivedAndClaimed,
    Change,
    Moved,
    Paused,
    SourceReplaced,
    Specified,
    Unlisted,
)
from millstream.queue.model.rates import NEVER_MS
from millstream.queue.model.slots import NO_SLOTS, Slots
from millstream.queue.model.spec import QueueSpec
from millstream.store.state.entity import Entity

APART = -1
"""The lane of messages that an index finds."""

SKIPPED_KEPT = 100
"""The most ranges of damaged records that a queue remembers."""


class Allotment(NamedTuple):
    """Claim numbers for new messages, and the free numbers after them."""

    ranges: list[Slots]
    free: tuple[int, int, int]
    next: int


class QueueState(Entity, array_like=True):
    """One queue."""

    queue_id: int = 0
    name: str = ""
    spec: QueueSpec = field(default_factory=QueueSpec)
    created_ms: int = 0
    eras: list[tuple[int, int, int]] = field(default_factory=list)
    """(first claim number, end, bucket exponent) of each bucket size; the last has end -1."""
    next: int = 0
    """The first claim number of the next bucket."""
    free: dict[int, Slots] = field(default_factory=dict)
    lanes: dict[int, list[Slots]] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    busy: dict[int, int] = field(default_factory=dict)
    alive: dict[int, int] = field(default_factory=dict)
    """Buckets with messages that are available, in flight or failed → how many."""
    paused: bool = False
    paid_until_ms: float = NEVER_MS
    rates: Rates = field(default_factory=Rates)
    done_ever: int = 0
    """Messages ever done, including forgotten ones."""
    failed_ever: int = 0
    """Messages ever failed, including redriven and purged ones."""
    skipped: list[tuple[int, int, int]] = field(default_factory=list)
    """The last ranges of unreadable records that routing skipped: log, from, to."""
    damaged: int = 0
    """The number of unreadable records."""
    letters: int = 0
    """Dead letters that are still to be written."""
    set_back: int = 0
    """How often the queue went back because the tail of a log was set aside."""
    withdrawn: int = 0
    """Unfinished messages lost with those tails."""
    cancelled: int = 0
    """Messages ever cancelled."""

    changes: ClassVar = Change
    computed: ClassVar = (Advanced, Arrived, ArrivedAndClaimed)

    def apply(self, change: Change) -> None:
        """Move to the next state."""
        match change:
            case Advanced():
                if change.done:
                    self._finish(change.done, change.at_ms)
                if change.claimed:
                    self._skip(0, change.claimed)
                    self._claim(change.claimed, change.claimed_in, change.until_ms)
            case ArrivedAndClaimed():
                if change.done:
                    self._finish(change.done, change.at_ms)
                self._catch_up(change)
            case Moved():
                self._move(change)
            case Arrived():
                self._receive(change)
            case SourceReplaced():
                self._replace_source(change)
            case Paused():
                self.paused = change.paused
            case Unlisted():
                self._unlist(change.lanes)
                self.cancelled += change.cancelled
            case Specified():
                if not self.queue_id:
                    self.queue_id, self.created_ms = change.queue_id, change.at_ms
                self.name, self.spec = change.name, change.spec
                self._begin_era(change.spec.bucket_exponent, change.numbers_from)

    def _begin_era(self, exponent: int, first: int) -> None:
        if self.eras:
            started, _, last = self.eras[-1]
            if last == exponent:
                return
            self.eras[-1] = (started, self.next, last)
        self.free.clear()
        self.next = first
        self.eras.append((first, -1, exponent))

    def _finish(self, ends: list[tuple[int, int, bool]], at_ms: int) -> None:
        counts = self.counts
        for bucket_id, done, busy in ends:
            counts.done += done
            counts.in_flight -= done
            self.done_ever += done
            self.rates.note(0, done, at_ms)
            self._survive(bucket_id, -done)
            if not busy:
                self.busy.pop(bucket_id, None)

    def _claim(self, count: int, bucket_id: int, until_ms: int) -> None:
        counts = self.counts
        counts.available -= count
        counts.in_flight += count
        counts.fresh -= count
        counts.claimed += count
        self.busy[bucket_id] = min(self.busy.get(bucket_id, until_ms), until_ms)

    def _catch_up(self, change: ArrivedAndClaimed) -> None:
        first, claimed, count = change.first, change.claimed, change.count
        bucket_id = self._add_to_lane(first, count, change.at_ms)
        if count > claimed:
            self.lanes[0] = [(first + claimed, first + count)]
        self.positions[change.log_id] = change.position
        self._claim(claimed, bucket_id, change.until_ms)

    def _receive(self, change: Arrived) -> None:
        count, first = change.count, change.first
        self._add_to_lane(first, count, change.at_ms)
        _extend(self.lanes.setdefault(0, []), first, first + count)
        self.positions[change.log_id] = change.position

    def _add_to_lane(self, first: int, count: int, at_ms: int) -> int:
        """Add `count` messages to lane 0 from the claim number `first` on; return their bucket."""
        counts = self.counts
        counts.available += count
        counts.fresh += count
        counts.placed += count
        self.rates.note(count, 0, at_ms)
        start, space, bucket_id = self.free_numbers()
        if start == self.next:
            self.next = start + space
        self.free[0] = first + count, start + space
        self._survive(bucket_id, count)
        return bucket_id

    def _move(self, change: Moved) -> None:
        counts, by = self.counts, change.counts
        counts.add(by)
        if by.placed or by.done > 0:
            self.rates.note(max(0, by.placed), max(0, by.done), change.at_ms)
        self.done_ever += max(0, by.done)
        self.failed_ever += max(0, by.failed)
        if change.next >= 0:
            self.next = change.next
        if change.paid_until_ms is not None:
            self.paid_until_ms = change.paid_until_ms
        for lane, start, stop in change.free:
            self.free[lane] = (start, stop)
        for lane, start, stop in change.placed:
            _extend(self.lanes.setdefault(lane, []), start, stop)
        for lane, count in change.lane_advances:
            self._skip(lane, count)
        self.positions.update(change.positions)
        self.letters += change.letters
        if change.skipped:
            self.skipped = [*self.skipped, *change.skipped][-SKIPPED_KEPT:]
            self.damaged += sum(stop - start for _, start, stop in change.skipped)
        for bucket_id, until_ms in change.busy:
            if until_ms:
                self.busy[bucket_id] = until_ms
            else:
                self.busy.pop(bucket_id, None)
        for bucket_id, by_count in change.alive:
            self._survive(bucket_id, by_count)

    def _replace_source(self, change: SourceReplaced) -> None:
        log_id, new_id = change.log_id, change.new_id
        self.positions[new_id] = change.position
        if change.end >= 0:
            self.positions[log_id] = change.end
        else:
            self.positions.pop(log_id, None)
        self.skipped = [
            (new_id if skipped_in == log_id and start < change.at else skipped_in, start, stop)
            for skipped_in, start, stop in self.skipped
        ]
        self._unlist(change.lanes)
        self.set_back += change.goes_back
        self.withdrawn += change.withdrawn

    def _unlist(self, lane_ranges: list[tuple[int, int, int]]) -> None:
        """Remove ascending ranges of numbers from their lanes."""
        gone: dict[int, list[Slots]] = {}
        for lane, start, stop in lane_ranges:
            gone.setdefault(lane, []).append((start, stop))
        for lane, ranges in gone.items():
            if remaining := _without(self.lanes.pop(lane), ranges):
                self.lanes[lane] = remaining

    def _survive(self, bucket_id: int, by: int) -> None:
        remaining = self.alive.get(bucket_id, 0) + by
        if remaining:
            self.alive[bucket_id] = remaining
        else:
            self.alive.pop(bucket_id, None)

    def _skip(self, lane: int, count: int) -> None:
        ranges = self.lanes[lane]
        while count:
            start, stop = ranges[0]
            if stop - start > count:
                ranges[0] = (start + count, stop)
                return
            count -= stop - start
            del ranges[0]
        if not ranges:
            del self.lanes[lane]

    def copied(self) -> Self:
        """Return an independent copy; the ranges of a lane change in place."""
        duplicate = Entity.copied(self)
        duplicate.lanes = {lane: ranges[:] for lane, ranges in self.lanes.items()}
        return duplicate

    def exists(self) -> bool:
        """Return whether a spec was stored."""
        return self.queue_id != 0

    def is_steady(self, now_ms: int) -> bool:
        """Return whether a claim takes the next numbers of lane 0: the queue is plain and not
        paused, no message is delayed or retried, and no lease has expired.
        """
        counts = self.counts
        if self.paused or not self.queue_id or not self.spec.is_plain:
            return False
        if counts.waiting or counts.scheduled or counts.ready:
            return False
        return not self.busy or min(self.busy.values()) > now_ms

    def front(self, count: int) -> tuple[int, Slots] | None:
        """Return the bucket and slots of the next `count` messages in lane 0, if a bucket has all
        of them.
        """
        if not count:
            return -1, NO_SLOTS
        first, _, exponent = self.eras[-1]
        ranges = self.lanes.get(0)
        start, stop = ranges[0] if ranges else NO_SLOTS
        capacity = CAPACITIES[exponent]
        slot = start % capacity
        if start < first or stop - start < count or capacity - slot < count:
            return None
        return (exponent << NUMBER_BITS) + start - slot, (slot, slot + count)

    def is_in_lane(self, claim_id: int) -> bool:
        """Return whether a message waits in a lane."""
        number = split_id(claim_id)[1]
        return any(
            start <= number < stop for ranges in self.lanes.values() for start, stop in ranges
        )

    def filling(self) -> set[int]:
        """Return the buckets that are not full yet."""
        exponent = self.eras[-1][2]
        open_ends = [stop for start, stop in self.free.values() if start < stop]
        return {make_bucket_id(exponent, stop - capacity_of(exponent)) for stop in open_ends}

    def allot(self, lane: int, count: int) -> Allotment:
        """Return free claim numbers for messages of a lane, and the free numbers after them."""
        start, stop = self.free.get(lane, (0, 0))
        ranges: list[Slots] = []
        from_free = min(count, stop - start)
        if from_free:
            _extend(ranges, start, start + from_free)
            start += from_free
        from_next, next_free = count - from_free, self.next
        if from_next:
            capacity = capacity_of(self.eras[-1][2])
            _extend(ranges, next_free, next_free + from_next)
            start = next_free + from_next
            next_free += -(-from_next // capacity) * capacity
            stop = next_free
        return Allotment(ranges, (lane, start, stop), next_free)

    def free_numbers(self) -> tuple[int, int, int]:
        """Return the next free number of lane 0, the free numbers from there in its bucket, and the
        bucket.
        """
        start, stop = self.free.get(0, NO_SLOTS)
        exponent = self.eras[-1][2]
        capacity = CAPACITIES[exponent]
        if start == stop:
            start, stop = self.next, self.next + capacity
        return start, stop - start, (exponent << NUMBER_BITS) + start - start % capacity

    def place_of(self, number: int) -> tuple[int, int]:
        """Return the bucket and the slot of a claim number."""
        first, _, exponent = self.eras[-1]
        if number < first:
            bucket_id, (slot, _) = next(self.pieces(number, number + 1))
            return bucket_id, slot
        slot = number % CAPACITIES[exponent]
        return (exponent << NUMBER_BITS) + number - slot, slot

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, Slots]]:
        """Yield the buckets of a range of claim numbers, with the slots in each."""
        for first, last, exponent in self._eras(start, stop):
            capacity = capacity_of(exponent)
            while first < last:
                base = first // capacity * capacity
                end = min(last, base + capacity)
                yield make_bucket_id(exponent, base), (first - base, end - base)
                first = end

    def _eras(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Split a range by bucket size; numbers skipped at a change of size are left out."""
        for first, end, exponent in self.eras:
            low, high = max(first, start), stop if end < 0 else min(end, stop)
            if low < high:
                yield low, high, exponent


def _extend(ranges: list[Slots], start: int, stop: int) -> None:
    if ranges and ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], stop)
    else:
        ranges.append((start, stop))


_NOWHERE: Slots = (2**63, 2**63)
"""Behind every slot."""


def _without(ranges: list[Slots], gone: list[Slots]) -> list[Slots]:
    """Return ascending ranges without the ascending ranges `gone`, which lie inside them."""
    remaining: list[Slots] = []
    going = iter(gone)
    start, stop = next(going)
    for first, last in ranges:
        while start < last:
            if first < start:
                remaining.append((first, start))
            first = stop
            start, stop = next(going, _NOWHERE)
        if first < last:
            remaining.append((first, last))
    return remaining
