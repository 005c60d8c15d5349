"""A bucket: the messages of one stretch of claim numbers, and how each of them stands.

Slots are claim numbers counted from the bucket's first. Changes name ranges of slots, because
messages are mostly claimed and finished side by side; a range costs as much as one slot. Who
claimed when, how each attempt ended, and where a message came from, is kept as ranges as well. This
is the whole truth about the messages: the RFC's records are made from it when they are asked for
(`records`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
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
    Caught,
    Change,
    Claimed,
    Ended,
    Filled,
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
"""Messages that lie apart are one grant from so many on."""

_ABSENT = b"".join(FILL[state] for state in NOT_THERE)


class Shorts(array):  # type: ignore[type-arg]  # which it takes from Python 3.12 on
    """Numbers of two bytes."""


class Times(array):  # type: ignore[type-arg]
    """Numbers of eight bytes, with a sign."""


def _array(kind: type[Shorts | Times], data: bytes = b"") -> Any:
    return kind("H" if kind is Shorts else "q", data)


_encode = msgspec.msgpack.Encoder(enc_hook=array.tobytes).encode


class Bucket(Entity):
    """The messages of one bucket."""

    states: bytearray = field(default_factory=bytearray)
    """One byte per slot."""
    attempts: Shorts = field(default_factory=partial(_array, Shorts))
    until_ms: Times = field(default_factory=partial(_array, Times))
    """Per slot: the end of the lease in flight, the due time when available, else when it ended; of
    what is gone, 0."""
    spans: list[Span] = field(default_factory=list)
    tries: list[ClaimedSlots] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    lane: int = 0
    marks: dict[int, SlotMark] = field(default_factory=dict)
    past: dict[int, list[Trial]] = field(default_factory=dict)
    """Slots and the attempts at their messages before these were driven again."""

    weight: ClassVar[int] = 250
    changes: ClassVar = Change
    computed: ClassVar = (Strode, Filled, Caught)

    def apply(self, change: Change) -> None:
        """Move to the next state."""
        match change:
            case Strode():
                self._stride(change.done, change.claimed, change)
            case Caught():
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
                for start, stop in self.done_through(change.through_ms):
                    self.states[start:stop] = FILL[FORGOTTEN] * (stop - start)
                    self._lose_past(start, stop)
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
        """The spans, cut and named anew; unfinished messages of what moved are forgotten."""
        for span in self.spans:
            skip = max(0, change.at - span.offset)
            if span.log_id != change.log_id or skip >= span.count:
                yield span
                continue
            slot, count = span.slot + skip, span.count - skip
            for state in (AVAILABLE, IN_FLIGHT):
                for start, stop in list(self.runs(state, slot, slot + count)):
                    self._fill(start, stop, GONE, 0)
                    self._lose_past(start, stop)
            if skip:
                yield replace(span, count=skip)
            yield replace(span.cut(skip, count, slot), log_id=change.to_id)

    def _stride(self, done: list[Slots], claimed: Sequence[Slots], change: Strode | Caught) -> None:
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
        more = slots - len(self.states)
        if more > 0:
            self.states.extend(bytes(more))
            self.attempts.extend(array("H", (0,)) * more)
            self.until_ms.extend(array("q", (0,)) * more)

    def _fill(self, start: int, stop: int, state: int, at_ms: int) -> None:
        if stop - start == 1:
            self.states[start], self.until_ms[start] = state, at_ms
            return
        self.states[start:stop] = FILL[state] * (stop - start)
        self.until_ms[start:stop] = array("q", [at_ms]) * (stop - start)

    def _count(self, start: int, stop: int) -> None:
        found, before = self.attempts, self.attempts[start]
        if stop - start == 1:
            found[start] = before + 1
            return
        if found[start:stop].count(before) == stop - start:
            found[start:stop] = array("H", (before + 1,)) * (stop - start)
            return
        for slot in range(start, stop):
            found[slot] += 1

    # Questions.

    def effort(self) -> int:
        """The work to fold it, in simple entities: 20 slots take as long as one of these."""
        return 1 + len(self.states) // 20

    def is_settled(self) -> bool:
        """Whether it is full, and nothing in it is to be claimed or in flight."""
        is_full = len(self.states) in CAPACITIES
        return is_full and not (self.any_are(AVAILABLE) or self.any_are(IN_FLIGHT))

    def exists(self) -> bool:
        """A bucket without slots has no record."""
        return bool(self.states)

    def all_are(self, start: int, stop: int, state: int) -> bool:
        """Whether every slot of a range has this state."""
        return self.states[start:stop] == FILL[state] * (stop - start)

    def holds(self, start: int, stop: int, attempt: int, now_ms: int) -> bool:
        """Whether all of these slots are in flight, claimed for this attempt, and their leases last."""
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
        """Whether any slot has this state."""
        return FILL[state] in self.states

    def runs(self, state: int, start: int = 0, stop: int | None = None) -> Iterator[Slots]:
        """The ranges of slots that have a state, in order."""
        states: bytearray = self.states
        end = len(states) if stop is None else min(stop, len(states))
        mark, position = FILL[state], start
        while (first := states.find(mark, position, end)) >= 0:
            behind = states[first:end]
            position = first + len(behind) - len(behind.lstrip(mark))
            yield first, position

    def done_through(self, at_ms: int) -> list[Slots]:
        """The ranges of slots that were done at a time or before."""
        found: list[Slots] = []
        for start, stop in self.runs(DONE):
            times = self.until_ms[start:stop]
            if max(times) <= at_ms:
                found.append((start, stop))
            elif min(times) <= at_ms:
                slot = start
                for is_over, some in groupby(times, lambda done_ms: done_ms <= at_ms):
                    first, slot = slot, slot + len(list(some))
                    if is_over:
                        found.append((first, slot))
        return found

    def first_ms(self, state: int) -> int | None:
        """The earliest time of a message in a state; None if there is none."""
        return min((min(self.until_ms[a:b]) for a, b in self.runs(state)), default=None)

    def last_ms(self, state: int) -> int | None:
        """The latest time of a message in a state; None if there is none."""
        return max((max(self.until_ms[a:b]) for a, b in self.runs(state)), default=None)

    def sources(self, start: int, stop: int) -> list[Span]:
        """Where the messages of a range of slots lie, span by span."""
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
        """A range of slots cut where the number of attempts changes: from, to, attempts."""
        attempts = self.attempts[start:stop]
        first = attempts[0]
        if attempts.count(first) == stop - start:
            return [(start, stop, first)]
        found = []
        for attempt, same in groupby(attempts):
            before, start = start, start + len(list(same))
            found.append((before, start, attempt))
        return found

    def stretches(self, start: int, stop: int) -> list[Stretch]:
        """Where the messages of a range of slots lie, in as few pieces as there can be.

        Records that were appended one by one are a span each, but mostly neighbours in their log.
        """
        spans = self.spans
        found: list[Stretch] = []
        before = max(0, bisect_right(spans, start, key=_slot_of) - 1) if len(spans) > 1 else 0
        if spans:
            span = spans[before]
            skip = start - span.slot
            if skip >= 0 and stop - span.slot <= span.count:  # one has all, as most claims find it
                return [(start, stop - start, span.log_id, span.offset + skip)]
        slot = count = log_id = offset = 0
        for at in range(before, len(spans)):
            span = spans[at]
            first, size, where = span.slot, span.count, span.offset
            if first >= stop:
                break
            if first < start:
                skip = start - first
                if skip >= size:
                    continue
                first, size, where = start, size - skip, where + skip
            if first + size > stop:
                size = stop - first
            if where == offset + count and first == slot + count and span.log_id == log_id:
                count += size
                continue
            if count:
                found.append((slot, count, log_id, offset))
            slot, count, log_id, offset = first, size, span.log_id, where
        if count:
            found.append((slot, count, log_id, offset))
        return found

    def scattered(self, start: int, stop: int) -> tuple[int, list[int]] | None:
        """The log and the offsets of messages that all lie apart in one log, in its order; else None.

        So they lie in the lane of one priority, mostly.
        """
        spans, count = self.spans, stop - start
        if not SCATTERED_MIN <= count <= len(spans):
            return None
        first = bisect_right(spans, start, key=_slot_of) - 1
        some = spans[first : first + count]
        # As many spans as slots: each of them has one, but for the last, which may go on.
        if len(some) < count or some[0].slot != start or some[-1].slot != stop - 1:
            return None
        log_id, offsets = some[0].log_id, [span.offset for span in some]
        if offsets[-1] - offsets[0] < count or [span.log_id for span in some].count(log_id) < count:
            return None
        return (log_id, offsets) if offsets == sorted(offsets) else None

    def mark(self, slot: int) -> SlotMark:
        """The priority and the group of a message."""
        return self.marks.get(slot) or (max(self.lane, 0), "")

    def arrived_ms(self, slot: int) -> int:
        """When a message was appended."""
        return self.spans[bisect_right(self.spans, slot, key=_slot_of) - 1].at_ms

    def claimable_ms(self, slots: Slots, *, epoch_ms: int, wall_ms: int) -> int | None:
        """Since when, or from when on, the first message of a range can be claimed, in wall time.

        That is when a message was appended, or when it is due if that is later. `epoch_ms` is the
        wall time of store time 0. What was appended before the wall clock was set back counts as
        appended now, at `wall_ms`. None if no message of the range is available.
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

    def copied(self) -> Self:
        """A copy that stays as it is while this one moves on; what never changes is shared."""
        made = copy(self)
        for name in self.__struct_fields__:
            setattr(made, name, copy(getattr(self, name)))
        return made

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read it from the bytes of its record."""
        return msgspec.msgpack.decode(data, type=cls, dec_hook=_array)

    def encode(self) -> bytes:
        """The bytes of its record, without the attempts at messages that are gone."""
        lean = copy(self)
        lean.tries, lean.ends = self._of_present(self.tries), self._of_present(self.ends)
        return _encode(lean)

    def _of_present(self, ranges: list[R]) -> list[R]:
        states = self.states
        if not any(FILL[state] in states for state in NOT_THERE):
            return ranges
        return [one for one in ranges if states[one.start : one.stop].strip(_ABSENT)]


def _stretches(spans: list[Span]) -> Iterator[Slots]:
    """The slots of spans, neighbours joined."""
    start = stop = 0
    for span in spans:
        if span.slot != stop:
            if start < stop:
                yield start, stop
            start = span.slot
        stop = span.slot + span.count
    if start < stop:
        yield start, stop
