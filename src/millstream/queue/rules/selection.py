"""The selection of a claim: the slots to claim, before they are claimed."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.format.ids import bucket_of
from millstream.queue.model.slots import Slots
from millstream.queue.model.state import QueueState


class Selection:
    """Slots to claim, by bucket, in the order of the choice."""

    def __init__(self, queue: QueueState) -> None:
        self.pieces: list[tuple[int, Slots]] = []
        self.count = 0
        self.advances: dict[int, int] = {}
        """Lanes → the number of messages taken off the front, to be claimed or passed over."""
        self.is_cut_short = False
        """Whether unread messages may be claimable as well."""
        self._queue = queue

    def add(self, bucket_id: int, start: int, stop: int) -> None:
        """Choose slots of a bucket."""
        self.count += stop - start
        if self.pieces:
            last, (first, end) = self.pieces[-1]
            if last == bucket_id and end == start:
                self.pieces[-1] = (bucket_id, (first, stop))
                return
        self.pieces.append((bucket_id, (start, stop)))

    def add_claims(self, claim_id: int, count: int) -> None:
        """Choose adjacent claims in a bucket."""
        bucket_id = bucket_of(claim_id)
        slot = claim_id - bucket_id
        self.add(bucket_id, slot, slot + count)

    def add_front(self, lane: int, count_max: int) -> None:
        """Choose up to `count_max` messages from the front of a lane."""
        skip = self.advances.get(lane, 0)
        for bucket_id, (start, stop) in self.front(lane):
            size = min(stop - start, count_max)
            self.add(bucket_id, start, start + size)
            skip += size
            count_max -= size
            if not count_max:
                break
        self.advances[lane] = skip

    def first(self, lane: int) -> tuple[int, int] | None:
        """Return the bucket and slot of the next message of a lane."""
        skip = self.advances.get(lane, 0)
        for start, stop in self._queue.lanes.get(lane, ()):
            if skip < stop - start:
                return self._queue.place_of(start + skip)
            skip -= stop - start
        return None

    def front(self, lane: int) -> Iterator[tuple[int, Slots]]:
        """Yield the waiting slots of a lane, bucket by bucket."""
        skip = self.advances.get(lane, 0)
        for start, stop in self._queue.lanes.get(lane, ()):
            if skip >= stop - start:
                skip -= stop - start
                continue
            yield from self._queue.pieces(start + skip, stop)
            skip = 0
