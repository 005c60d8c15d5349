"""Choosing: what one claim is to get, until it is taken."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.format.ids import bucket_of
from millstream.queue.model.slots import Slots
from millstream.queue.model.state import QueueState


class Chosen:
    """Slots that are to be claimed, by bucket, in the order in which they were chosen."""

    def __init__(self, queue: QueueState) -> None:
        self.parts: list[tuple[int, Slots]] = []
        self.count = 0
        self.taken: dict[int, int] = {}
        """Of each lane, how many were taken off its front, to be claimed or passed over."""
        self.is_cut_short = False
        """Whether more may be had that was not looked at."""
        self._queue = queue

    def add(self, bucket_id: int, start: int, stop: int) -> None:
        """Choose slots of a bucket."""
        self.count += stop - start
        if self.parts:
            last, (first, end) = self.parts[-1]
            if last == bucket_id and end == start:
                self.parts[-1] = (bucket_id, (first, stop))
                return
        self.parts.append((bucket_id, (start, stop)))

    def add_claims(self, claim_id: int, count: int) -> None:
        """Choose neighbours, all of one bucket."""
        bucket_id = bucket_of(claim_id)
        slot = claim_id - bucket_id
        self.add(bucket_id, slot, slot + count)

    def add_front(self, lane: int, most: int) -> None:
        """Take up to so many from the front of a lane."""
        skip = self.taken.get(lane, 0)
        for bucket_id, (start, stop) in self.front(lane):
            some = min(stop - start, most)
            self.add(bucket_id, start, start + some)
            skip += some
            most -= some
            if not most:
                break
        self.taken[lane] = skip

    def first(self, lane: int) -> tuple[int, int] | None:
        """The bucket and the slot of the first message in a lane that was not taken."""
        skip = self.taken.get(lane, 0)
        for start, stop in self._queue.lanes.get(lane, ()):
            if skip < stop - start:
                return self._queue.place_of(start + skip)
            skip -= stop - start
        return None

    def front(self, lane: int) -> Iterator[tuple[int, Slots]]:
        """What waits in a lane and was not taken, piece by piece."""
        skip = self.taken.get(lane, 0)
        for start, stop in self._queue.lanes.get(lane, ()):
            if skip >= stop - start:
                skip -= stop - start
                continue
            yield from self._queue.pieces(start + skip, stop)
            skip = 0
