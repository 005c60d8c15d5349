"""A bucket: the messages of a stretch of claim numbers, with the state of each message.

Slots are claim numbers counted from the bucket's first number. Changes name ranges of slots,
because consumers mostly claim and finish neighbours; a range costs as much as a single slot.
Claims, ends of attempts, and the origin of messages are ranges as well. The bucket is the only
record of the messages' state: the RFC's records are made from it on demand (`records`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeVar

import msgspec
from msgspec import field
from msgspec.structs import replace

from millstream.format.ids import CAPACITIES
from millstream.queue.model.bucket_changes import (
    Cancelled,
    Change,
    Claimed,
    Ended,
    Filled,
    FilledAndClaimed,
    Forgot,
    Placed,
    Removed,
    Renewed,
    SlotMark,
    Strode,
    Withdrawn,
)
from millstream.queue.model.slots import (
    AVAILABLE,
    CANCELLED,
    DONE,
    FILL,
    FORGOTTEN,
    GONE,
    IN_FLIGHT,
    NOT_THERE,
    ClaimedSlots,
    End,
    Slots,
    Span,
    Stretch,
    Trial,
)
from millstream.store.state.entity import Entity

_slot_of = attrgetter("slot")

R = TypeVar("R", ClaimedSlots, End)

SCATTERED_MIN = 4
"""From this number on, scattered messages are handed out as a single grant."""

_ABSENT = b"".join(FILL[state] for state in NOT_THERE)


class Shorts(array):  # type: ignore[type-arg]  # generic only from Python 3.12 on
    """Numbers of two bytes."""


class Times(array):  # type: ignore[type-arg]
    """Numbers of eight bytes, with a sign."""


def _array(kind: type[Shorts | Times], data: bytes = b"") -> Any:
    return kind("H" if kind is Shorts else "q", data)


_encode = msgspec.msgpack.Encoder(enc_hook=array.tobytes).encode


class Bucket(Entity):
    """The messages of one bucket."""

    states: bytearray = field(default_factory=bytearray)
    """The state of each slot, a byte per slot."""
    attempts: Shorts = field(default_factory=partial(_array, Shorts))
    until_ms: Times = field(default_factory=partial(_array, Times))
    """Per slot: the end of the lease while in flight, the due time while available, the end time
    when finished or cancelled, 0 when gone.
    """
    spans: list[Span] = field(default_factory=list)
    tries: list[ClaimedSlots] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    lane: int = 0
    marks: dict[int, SlotMark] = field(default_factory=dict)
    past: dict[int, list[Trial]] = field(default_factory=dict)
    """Slots → attempts before the message was redriven."""

    weight: ClassVar[int] = 250
    changes: ClassVar = Change
    computed: ClassVar = (Strode, Filled, FilledAndClaimed, Placed)

    def apply(self, change: Change) -> None:
        """Move to the next state."""
        match change:
            case Strode():
                self._stride(change.done, change.claimed, change)
            case FilledAndClaimed():
                self._receive(change.spans)
                self._stride(change.done, (change.claimed,), change)
            case Claimed():
                for start, stop in change.ranges:
                    self._fill(start, stop, IN_FLIGHT, change.until_ms)
                    self._count(start, stop)
                    self.tries.append(ClaimedSlots(start, stop, change.at_ms, change.consumer))
            case Ended():
                at_ms = change.due_ms if change.state == AVAILABLE else change.at_ms
                for start, stop in change.ranges:
                    self._fill(start, stop, change.state, at_ms)
                    self.ends.append(End(start, stop, change.at_ms, change.state, change.reason))
            case Placed():
                self.lane = change.lane
                self.marks.update(change.marks)
                self.past.update(change.past)
                self._receive(change.spans)
                for slot, due_ms in change.dues.items():
                    self.until_ms[slot] = due_ms
                for start, stop, due_ms in change.delays:
                    self._fill(start, stop, AVAILABLE, due_ms)
            case Filled():
                self._receive(change.spans)
            case Renewed():
                for start, stop in change.ranges:
                    self.until_ms[start:stop] = array("q", [change.until_ms]) * (stop - start)
            case Removed():
                for start, stop in change.ranges:
                    self._fill(start, stop, GONE, 0)
                    self._lose_past(start, stop)
            case Forgot():
                for start, stop in self.ended_through(change.through_ms, DONE):
                    self.states[start:stop] = FILL[FORGOTTEN] * (stop - start)
                    self._lose_past(start, stop)
                for start, stop in self.ended_through(change.through_ms, CANCELLED):
                    self._fill(start, stop, GONE, 0)
                    self._lose_past(start, stop)
            case Cancelled():
                for start, stop in change.ranges:
                    self._fill(start, stop, CANCELLED, change.at_ms)
            case Withdrawn():
                self.spans = list(self._moved(change))

    def _receive(self, spans: list[Span]) -> None:
        if len(spans) == 1 and spans[0].count == 1 and spans[0].slot == len(self.states):
            self.states.append(AVAILABLE)
            self.attempts.append(0)
            self.until_ms.append(0)
            self.spans += spans
            return
        for start, stop in _stretches(spans):
            self._grow(stop)
            self._fill(start, stop, AVAILABLE, 0)
        self.spans += spans

    def _moved(self, change: Withdrawn) -> Iterator[Span]:
        """Yield the spans with the records before the tail under the new log id; remove unfinished
        messages of the tail.
        """
        for span in self.spans:
            skip = max(0, change.at - span.offset)
            if span.log_id != change.log_id:
                yield span
                continue
            if skip >= span.count:
                yield replace(span, log_id=change.new_id)
                continue
            slot, count = span.slot + skip, span.count - skip
            for state in (AVAILABLE, IN_FLIGHT):
                for start, stop in list(self.runs(state, slot, slot + count)):
                    self._fill(start, stop, GONE, 0)
                    self._lose_past(start, stop)
            if skip:
                yield replace(span, count=skip, log_id=change.new_id)
            yield span.cut(skip, count, slot)

    def _stride(
        self, done: list[Slots], claimed: Sequence[Slots], change: Strode | FilledAndClaimed
    ) -> None:
        at_ms = change.at_ms
        for start, stop in done:
            self._fill(start, stop, DONE, at_ms)
            self.ends.append(End(start, stop, at_ms, DONE, ""))
        if claimed:
            first, last = claimed[0][0], claimed[-1][1]
            self._fill(first, last, IN_FLIGHT, change.until_ms)
            self._count(first, last)
            for start, stop in claimed:
                self.tries.append(ClaimedSlots(start, stop, at_ms, change.consumer))

    def _lose_past(self, start: int, stop: int) -> None:
        if self.past:
            for slot in range(start, stop):
                self.past.pop(slot, None)

    def _grow(self, slots: int) -> None:
        missing = slots - len(self.states)
        if missing > 0:
            self.states.extend(bytes(missing))
            self.attempts.extend(array("H", (0,)) * missing)
            self.until_ms.extend(array("q", (0,)) * missing)

    def _fill(self, start: int, stop: int, state: int, at_ms: int) -> None:
        if stop - start == 1:
            self.states[start], self.until_ms[start] = state, at_ms
            return
        self.states[start:stop] = FILL[state] * (stop - start)
        self.until_ms[start:stop] = array("q", [at_ms]) * (stop - start)

    def _count(self, start: int, stop: int) -> None:
        attempts, before = self.attempts, self.attempts[start]
        if stop - start == 1:
            attempts[start] = before + 1
            return
        if attempts[start:stop].count(before) == stop - start:
            attempts[start:stop] = array("H", (before + 1,)) * (stop - start)
            return
        for slot in range(start, stop):
            attempts[slot] += 1

    def effort(self) -> int:
        """Return the work to fold this bucket, in units of a small entity: 20 slots are a unit."""
        return 1 + len(self.states) // 20

    def is_settled(self) -> bool:
        """Return whether the bucket is full and no message in it is available or in flight."""
        is_full = len(self.states) in CAPACITIES
        return is_full and not (self.any_are(AVAILABLE) or self.any_are(IN_FLIGHT))

    def exists(self) -> bool:
        """Return whether the bucket has slots. A bucket without slots has no row."""
        return bool(self.states)

    def all_are(self, start: int, stop: int, state: int) -> bool:
        """Return whether every slot of a range has a state."""
        return self.states[start:stop] == FILL[state] * (stop - start)

    def holds(self, start: int, stop: int, attempt: int, now_ms: int) -> bool:
        """Return whether slots are in flight for this attempt, with leases that last beyond
        `now_ms`.
        """
        if stop - start == 1:
            return (
                stop <= len(self.states)
                and self.states[start] == IN_FLIGHT
                and self.attempts[start] == attempt
                and self.until_ms[start] > now_ms
            )
        return (
            start < stop <= len(self.states)
            and self.all_are(start, stop, IN_FLIGHT)
            and self.attempts[start:stop].count(attempt) == stop - start
            and min(self.until_ms[start:stop]) > now_ms
        )

    def any_are(self, state: int) -> bool:
        """Return whether a slot has this state."""
        return FILL[state] in self.states

    def runs(self, state: int, start: int = 0, stop: int | None = None) -> Iterator[Slots]:
        """Yield the ranges of slots in a state, in order."""
        states: bytearray = self.states
        end = len(states) if stop is None else min(stop, len(states))
        mark, position = FILL[state], start
        while (first := states.find(mark, position, end)) >= 0:
            behind = states[first:end]
            position = first + len(behind) - len(behind.lstrip(mark))
            yield first, position

    def ended_through(self, at_ms: int, state: int) -> list[Slots]:
        """Return the ranges of slots that were done, or cancelled, at or before a time."""
        ended_slots: list[Slots] = []
        for start, stop in self.runs(state):
            times = self.until_ms[start:stop]
            if max(times) <= at_ms:
                ended_slots.append((start, stop))
            elif min(times) <= at_ms:
                slot = start
                for is_over, run in groupby(times, lambda ended_ms: ended_ms <= at_ms):
                    first, slot = slot, slot + len(list(run))
                    if is_over:
                        ended_slots.append((first, slot))
        return ended_slots

    def first_ms(self, state: int) -> int | None:
        """Return the earliest time of a message in a state, or None."""
        return min((min(self.until_ms[a:b]) for a, b in self.runs(state)), default=None)

    def last_ms(self, state: int) -> int | None:
        """Return the latest time of a message in a state, or None."""
        return max((max(self.until_ms[a:b]) for a, b in self.runs(state)), default=None)

    def sources(self, start: int, stop: int) -> list[Span]:
        """Return the spans of a range of slots."""
        spans = self.spans
        if len(spans) > 1:
            low = max(bisect_right(spans, start, key=_slot_of) - 1, 0)
            spans = spans[low : bisect_left(spans, stop, low, key=_slot_of)]
        else:
            spans = spans[:]
        if spans and (skip := start - spans[0].slot) > 0:
            first = spans[0]
            spans[:1] = [first.cut(skip, first.count - skip, start)] if skip < first.count else []
        if spans and (over := spans[-1].slot + spans[-1].count - stop) > 0:
            last = spans[-1]
            spans[-1:] = [last.cut(0, last.count - over, last.slot)] if over < last.count else []
        return spans

    def attempt_runs(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Cut a range of slots where the number of attempts changes: from, to, attempts."""
        attempts = self.attempts[start:stop]
        first = attempts[0]
        if attempts.count(first) == stop - start:
            return [(start, stop, first)]
        runs = []
        for attempt, run in groupby(attempts):
            before, start = start, start + len(list(run))
            runs.append((before, start, attempt))
        return runs

    def stretches(self, start: int, stop: int) -> list[Stretch]:
        """Return the log positions of a range of slots, in as few pieces as possible.

        Records that were appended separately have a span each, but mostly are neighbours in their
        log.
        """
        spans = self.spans
        stretches: list[Stretch] = []
        before = max(0, bisect_right(spans, start, key=_slot_of) - 1) if len(spans) > 1 else 0
        if spans:
            span = spans[before]
            skip = start - span.slot
            if skip >= 0 and stop - span.slot <= span.count:  # most claims lie in a single span
                return [(start, stop - start, span.log_id, span.offset + skip)]
        slot = count = log_id = offset = 0
        for at in range(before, len(spans)):
            span = spans[at]
            first, size, position = span.slot, span.count, span.offset
            if first >= stop:
                break
            if first < start:
                skip = start - first
                if skip >= size:
                    continue
                first, size, position = start, size - skip, position + skip
            if first + size > stop:
                size = stop - first
            if position == offset + count and first == slot + count and span.log_id == log_id:
                count += size
                continue
            if count:
                stretches.append((slot, count, log_id, offset))
            slot, count, log_id, offset = first, size, span.log_id, position
        if count:
            stretches.append((slot, count, log_id, offset))
        return stretches

    def scattered(self, start: int, stop: int) -> tuple[int, list[int]] | None:
        """Return the log and offsets of messages that all lie apart in a log, in its order; else
        None.

        The messages in the lane of a priority mostly lie like this.
        """
        spans, count = self.spans, stop - start
        if not SCATTERED_MIN <= count <= len(spans):
            return None
        first = bisect_right(spans, start, key=_slot_of) - 1
        candidates = spans[first : first + count]
        # There are as many spans as slots, so every span has a slot, and only the last may go on.
        if (
            len(candidates) < count
            or candidates[0].slot != start
            or candidates[-1].slot != stop - 1
        ):
            return None
        log_id, offsets = candidates[0].log_id, [span.offset for span in candidates]
        if (
            offsets[-1] - offsets[0] < count
            or [span.log_id for span in candidates].count(log_id) < count
        ):
            return None
        return (log_id, offsets) if offsets == sorted(offsets) else None

    def mark(self, slot: int) -> SlotMark:
        """Return the priority and the group of a message."""
        return self.marks.get(slot) or (max(self.lane, 0), "")

    def groups(self, start: int, stop: int) -> dict[str, int]:
        """Count the messages of a range by group; a message outside any group is not counted."""
        counts: dict[str, int] = {}
        for mark, count in Counter(map(self.marks.get, range(start, stop))).items():
            if mark is not None:
                counts[mark[1]] = counts.get(mark[1], 0) + count
        return counts

    def arrived_ms(self, slot: int) -> int:
        """Return the time of a message's append."""
        return self.spans[bisect_right(self.spans, slot, key=_slot_of) - 1].at_ms

    def claimable_ms(self, slots: Slots, *, epoch_ms: int, wall_ms: int) -> int | None:
        """Return the wall time from which the first message of a range is or will be claimable.

        This is the append time of a message, or its due time if later. `epoch_ms` is the wall time
        of store time 0. A message appended before the wall clock was set back counts as appended at
        `wall_ms`. None if no message of the range is available.
        """
        earliest: int | None = None
        for first, end in self.runs(AVAILABLE, *slots):
            for span in self.sources(first, end):
                at_ms = min(span.at_ms, wall_ms)
                if earliest is not None and at_ms >= earliest:
                    continue
                due_ms = min(self.until_ms[span.slot : span.slot + span.count])
                since_ms = max(at_ms, epoch_ms + due_ms) if due_ms else at_ms
                earliest = since_ms if earliest is None else min(earliest, since_ms)
        return earliest

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a bucket from the bytes of its row."""
        return msgspec.msgpack.decode(data, type=cls, dec_hook=_array)

    def encode(self) -> bytes:
        """Encode the bucket as its row, without attempts at messages that are gone."""
        lean = copy(self)
        lean.tries, lean.ends = self._of_present(self.tries), self._of_present(self.ends)
        return _encode(lean)

    def _of_present(self, ranges: list[R]) -> list[R]:
        states = self.states
        if not any(FILL[state] in states for state in NOT_THERE):
            return ranges
        return [entry for entry in ranges if states[entry.start : entry.stop].strip(_ABSENT)]


def _stretches(spans: list[Span]) -> Iterator[Slots]:
    """Yield the slots of spans, with neighbours joined."""
    start = stop = 0
    for span in spans:
        if span.slot != stop:
            if start < stop:
                yield start, stop
            start = span.slot
        stop = span.slot + span.count
    if start < stop:
        yield start, stop
