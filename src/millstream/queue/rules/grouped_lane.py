"""Passing over: claims from the lane of a queue with groups.

Messages of all groups wait in one lane, in their order. A claim goes through it from the front and
takes each message whose group lets it go. One that may not go yet (its group has enough in flight, a
retry or others wait before it, its time has not come) is passed over: it leaves the lane and waits in
its group, where the end of an attempt finds it. So what is never held up costs no row and no record.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.queue.model.slots import Slots
from millstream.queue.rules.choosing import Chosen
from millstream.queue.rules.index import QUIET, Rank
from millstream.queue.rules.ledger import Ledger

PASSED_MAX = 2_000
"""Messages that one commit passes over."""

STEP_MIN = 16
LANE = 0


def take_passing(ledger: Ledger, chosen: Chosen, most: int, limit: Rank) -> bool:
    """Take messages off the lane while nothing else has a better rank, until `most` are chosen.

    False if there was too much to pass over: the next claim goes on from there.
    """
    walk = _Walk(ledger, chosen, most)
    at_ms: int | None = None
    for bucket_id, slots in _steps(chosen, most):
        for span in ledger.bucket(bucket_id).sources(*slots):
            if span.at_ms != at_ms:
                at_ms = span.at_ms
                if walk.walked and (QUIET, ledger.index.rank(LANE, at_ms)) >= limit:
                    return walk.end()
            if walk.go(bucket_id, span.slot, span.slot + span.count, at_ms):
                return walk.end()
    return walk.end()


def _steps(chosen: Chosen, most: int) -> Iterator[tuple[int, Slots]]:
    """What waits in the lane, as many at a time as are asked for: mostly the first will do."""
    for bucket_id, (start, stop) in chosen.front(LANE):
        while start < stop:
            end = min(stop, start + max(most, STEP_MIN))
            yield bucket_id, (start, end)
            start = end


class _Walk:
    """A walk from the front of the lane."""

    def __init__(self, ledger: Ledger, chosen: Chosen, most: int) -> None:
        self.walked = self.passed = 0
        self._ledger = ledger
        self._chosen = chosen
        self._most = most

    def go(self, bucket_id: int, start: int, stop: int, at_ms: int) -> bool:
        """Go through slots that came together; True if that is enough."""
        chosen, index = self._chosen, self._ledger.index
        bucket, now_ms = self._ledger.bucket(bucket_id), self._ledger.tx.store_ms
        marks, due, admits = bucket.marks, bucket.until_ms, index.admits
        left = self._most - chosen.count
        first = start
        for slot in range(start, stop):
            mark = marks.get(slot)
            if mark is None or (due[slot] <= now_ms and admits(mark[1])):
                left -= 1
                if left:
                    continue
                slot += 1
            if first < slot:
                chosen.add(bucket_id, first, slot)
            if not left:
                self.walked += slot - start
                return True
            assert mark is not None
            index.pass_over(bucket_id + slot, mark[1], at_ms=at_ms, due_ms=due[slot])
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

    def end(self) -> bool:
        """Note how far it has come."""
        chosen = self._chosen
        chosen.taken[LANE] = chosen.taken.get(LANE, 0) + self.walked
        return not chosen.is_cut_short
