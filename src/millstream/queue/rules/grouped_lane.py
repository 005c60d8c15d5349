"""A lane of a queue with groups: claims walk it from the front and pass over blocked groups.

The messages of all groups wait in a lane, in order; with priorities, in a lane for each priority. A
claim walks the lane from the front and takes every message whose group allows it. A blocked message
(its group has enough in flight, a retry or earlier members wait, or it is not due) is passed over: it
moves from the lane into its group, where the end of an attempt finds it. So a message that is never
blocked costs no row and no record.

A claim of runs gathers the messages of one group first. It looks ahead for more messages of this group,
and moves the messages of other groups between them into their groups. The same claim takes those messages
next, if it has space left; otherwise another consumer claims them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from millstream.queue.model.bucket_changes import SlotMark
from millstream.queue.model.slots import Slots
from millstream.queue.rules.index import QUIET
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.ready import Rank
from millstream.queue.rules.selection import Selection

PASSED_MAX = 2_000
"""The most messages that a commit passes over."""

STEP_MIN = 16

LOOKED_AHEAD = 64
"""How far a claim of runs looks for more messages of a group."""

ASIDE_PER_GATHERED = 9
"""The most messages that it sets aside per further message of the group. A claim of a message that was
set aside takes up to three times the processor time of one from the lane (2026-11).
"""

ALIKE_MIN = 4
"""From this number on, messages are first counted by group: if every group allows all of its messages,
a message takes 0.2 µs instead of 1 (2026-11).
"""


def take_passing(ledger: Ledger, chosen: Selection, lane: int, count_max: int, limit: Rank) -> bool:
    """Take messages off a lane until `count_max` are chosen or another message has a better rank.

    Returns False if too many were passed over; the next claim continues from there.
    """
    walk = _Walk(ledger, chosen, lane, count_max)
    at_ms: int | None = None
    gathers = ledger.index.takes_runs and count_max > 1
    go = walk.gather if gathers else walk.go
    for bucket_id, slots in _steps(chosen, lane, LOOKED_AHEAD if gathers else count_max):
        walk.end_of_step = slots[1]
        for span in ledger.bucket(bucket_id).sources(*slots):
            if span.at_ms != at_ms:
                at_ms = span.at_ms
                if walk.walked and (QUIET, ledger.index.rank(lane, at_ms)) >= limit:
                    return walk.end()
            if go(bucket_id, span.slot, span.slot + span.count, at_ms):
                return walk.end()
    return walk.end()


def _steps(chosen: Selection, lane: int, count_max: int) -> Iterator[tuple[int, Slots]]:
    """Yield the waiting slots in steps of about the requested count. Usually the first step is
    enough.
    """
    for bucket_id, (start, stop) in chosen.front(lane):
        while start < stop:
            end = min(stop, start + max(count_max, STEP_MIN))
            yield bucket_id, (start, end)
            start = end


class _Walk:
    """A walk from the front of the lane."""

    def __init__(self, ledger: Ledger, chosen: Selection, lane: int, count_max: int) -> None:
        self._lane = lane
        self.walked = self.passed = 0
        self._ledger = ledger
        self._chosen = chosen
        self._count_max = count_max
        self.end_of_step = 0
        self._gathered = ""
        """The group whose messages a claim of runs takes."""
        self._place: tuple[int, int] = -1, -1
        """The bucket and the slot of the last message of this group in the step."""
        self._sets_aside = False
        """Whether messages of other groups were set aside."""

    def go(self, bucket_id: int, start: int, stop: int, at_ms: int) -> bool:
        """Walk slots with the same append time; return True if the claim has enough."""
        chosen, index = self._chosen, self._ledger.index
        bucket, now_ms = self._ledger.bucket(bucket_id), self._ledger.tx.store_ms
        marks, due, admits = bucket.marks, bucket.until_ms, index.admits
        missing = self._count_max - chosen.count
        end = min(stop, start + missing)
        if (
            end - start >= ALIKE_MIN
            and max(due[start:end]) <= now_ms
            and index.admits_all(bucket.groups(start, end))
        ):
            chosen.add(bucket_id, start, end)
            self.walked += end - start
            return end - start == missing
        first = start
        for slot in range(start, stop):
            mark = marks.get(slot)
            if mark is None or (due[slot] <= now_ms and admits(mark[1])):
                missing -= 1
                if missing:
                    continue
                slot += 1
            if first < slot:
                chosen.add(bucket_id, first, slot)
            if not missing:
                self.walked += slot - start
                return True
            assert mark is not None
            index.pass_over(
                bucket_id + slot, mark[1], priority=self._lane, at_ms=at_ms, due_ms=due[slot]
            )
            self.passed += 1
            first = slot + 1
            if self.passed >= PASSED_MAX:
                self.walked += first - start
                chosen.is_cut_short = True
                return True
        if first < stop:
            chosen.add(bucket_id, first, stop)
        self.walked += stop - start
        return False

    def gather(self, bucket_id: int, start: int, stop: int, at_ms: int) -> bool:
        """As `go`, for a claim of runs."""
        chosen, index = self._chosen, self._ledger.index
        bucket, now_ms = self._ledger.bucket(bucket_id), self._ledger.tx.store_ms
        marks, due = bucket.marks, bucket.until_ms
        for slot in range(start, stop):
            gathers = bucket_id == self._place[0] and slot <= self._place[1]
            is_cut_short = self.passed >= PASSED_MAX
            if (
                is_cut_short
                or chosen.count == self._count_max
                or (self._sets_aside and not gathers)
            ):
                self.walked += slot - start
                chosen.is_cut_short = is_cut_short
                return True
            mark = marks.get(slot)
            if mark is None:
                chosen.add(bucket_id, slot, slot + 1)
                continue
            is_other = gathers and mark[1] != self._gathered
            if not is_other and due[slot] <= now_ms and index.admits(mark[1]):
                chosen.add(bucket_id, slot, slot + 1)
                if not gathers and index.may_run(mark[1]):
                    self._gathered = mark[1]
                    self._place = bucket_id, self._last_of(marks, mark[1], slot)
                continue
            self._sets_aside |= is_other
            if not is_other:
                self._place = -1, -1  # the later messages of the group are blocked
            index.pass_over(
                bucket_id + slot, mark[1], priority=self._lane, at_ms=at_ms, due_ms=due[slot]
            )
            self.passed += 1
        self.walked += stop - start
        return False

    def _last_of(self, marks: Mapping[int, SlotMark], name: str, slot: int) -> int:
        """Return the slot of the last message of a group to gather in the step."""
        last, gathered, others = slot, 0, 0
        for later in range(slot + 1, self.end_of_step):
            mark = marks.get(later)
            if mark is not None and mark[1] == name:
                last, gathered = later, gathered + 1
            else:
                others += 1
                if others > ASIDE_PER_GATHERED * (gathered + 1):
                    break
        return last

    def end(self) -> bool:
        """Record the walked distance; return False if the walk was cut short."""
        chosen, lane = self._chosen, self._lane
        chosen.advances[lane] = chosen.advances.get(lane, 0) + self.walked
        return not chosen.is_cut_short
