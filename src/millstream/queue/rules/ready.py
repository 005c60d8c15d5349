"""The ready messages of an operation: those that the next claim may take, best rank first.

Stored rows list ready messages by class and rank. Entries that the operation adds stay in memory
until `write`, so that a claim can take a message which an acknowledgement in the same commit has
freed. The index (`index.py`) decides which messages are ready; this module keeps them.
"""

from __future__ import annotations

import heapq

from millstream.format import keys
from millstream.format.ids import split_id
from millstream.queue.model.counts import Counts
from millstream.queue.model.state import QueueState
from millstream.store.commit.transaction import WriteTransaction

ROWS_PER_READ = 16
"""The rows of the index to read first. A row of neighbours may satisfy the whole claim."""

Rank = tuple[int, int]
Entry = tuple[Rank, int, int, str, int]
"""Class and rank, claim number, claim id, group, count. The smallest entry is claimed first."""


class ReadyRows:
    """Ready messages: stored rows, entries of this operation, and a heap of both for a claim."""

    __slots__ = ("_counts", "_heap", "_queue", "_tx", "added")

    def __init__(self, tx: WriteTransaction, queue: QueueState, counts: Counts) -> None:
        self._tx = tx
        self._queue = queue
        self._counts = counts
        self._heap: list[Entry] = []
        self.added: dict[int, tuple[Rank, str, int]] = {}
        """Claim ids → class and rank, group, and the number of neighbours with the same."""

    def read(self, count_max: int) -> None:
        """Build the heap for a claim of `count_max`: stored rows together with added entries."""
        # A claim mostly needs a few rows, and a row of neighbours may cover all of it. So the first
        # read is small, and only a claim that needs more reads as many rows as messages are
        # missing.
        heap = [
            (rank, split_id(claim_id)[1], claim_id, group, count)
            for claim_id, (rank, group, count) in self.added.items()
        ]
        if self._queue.counts.ready:
            start, stop = keys.of_queue(keys.READY, self._queue.queue_id)
            limit = ROWS_PER_READ
            while count_max > 0:
                rows = self._tx.scan(start, stop, limit=limit)
                for key, value in rows:
                    rank, claim_id = keys.ready_claim(key)
                    count = keys.run_count(value[:4])
                    heap.append((rank, split_id(claim_id)[1], claim_id, value[4:].decode(), count))
                    count_max -= count
                if len(rows) < limit:
                    break
                start, limit = keys.successor(rows[-1][0]), max(count_max, 1)
        heapq.heapify(heap)
        self._heap = heap

    def best(self) -> Entry | None:
        """Return the entry to claim next."""
        return self._heap[0] if self._heap else None

    def take(self, count_max: int) -> tuple[Entry, int]:
        """Remove up to `count_max` neighbours of the best entry; return the entry and the number."""
        entry = heapq.heappop(self._heap)
        rank, _, claim_id, _, count = entry
        self.remove(claim_id, rank, count)
        size = min(count, count_max)
        if size < count:
            self.added[claim_id + size] = rank, "", count - size
            self.offer(claim_id + size)
        return entry, size

    def offer(self, claim_id: int) -> None:
        """Let the current claim take the added entry of a claim id, if there is such an entry."""
        entry = self.added.get(claim_id)
        if entry is not None:
            rank, name, count = entry
            heapq.heappush(self._heap, (rank, split_id(claim_id)[1], claim_id, name, count))

    def remove(self, claim_id: int, rank: Rank, count: int) -> None:
        """Remove an entry, added or stored."""
        if self.added.pop(claim_id, None) is None:
            self._tx.erase(keys.ready(self._queue.queue_id, rank, claim_id))
            self._counts.ready -= count

    def write(self, *, home: bool) -> None:
        """Write the added entries as rows."""
        tx, queue_id = self._tx, self._queue.queue_id
        for claim_id, (rank, name, count) in self.added.items():
            value = keys.run_value(count, full=True) + name.encode()
            tx.put(keys.ready(queue_id, rank, claim_id), value, home=home)
            self._counts.ready += count
