"""The ledger: what one operation does to a queue, summed up and written as one change.

Rules look at the queue through it, so that a claim already sees what the acknowledgement before it
has set free.
"""

from __future__ import annotations

from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.counts import Counts
from millstream.queue.model.queue_changes import Moved
from millstream.queue.model.spec import no_queue
from millstream.queue.model.state import QueueState
from millstream.queue.rules.finding import of_queue
from millstream.queue.rules.index import Index
from millstream.store.commit.transaction import WriteTransaction


class Ledger:
    """One queue in one operation; `close` writes what has changed."""

    def __init__(self, tx: WriteTransaction, name: str) -> None:
        self.tx = tx
        self.key = keys.queue(name)
        self.queue = tx.entity(self.key, QueueState)
        if not self.queue.queue_id:
            raise no_queue(name)
        self.counts = Counts()
        self.busy: dict[int, int] = {}
        self.alive: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.positions: list[tuple[int, int]] = []
        self.letters = 0
        self.is_overtaken = False
        """Whether another caller has routed meanwhile what was to be placed."""
        self.skipped: list[tuple[int, int, int]] = []
        self.paid_until_ms: float | None = None
        self._index: Index | None = None

    @property
    def index(self) -> Index:
        """What is claimed by other things than its turn."""
        if self._index is None:
            self._index = Index(self.tx, self.queue, self.counts)
        return self._index

    def bucket(self, bucket_id: int) -> Bucket:
        """One of the queue's buckets."""
        try:
            return self.tx.entity(keys.bucket(self.queue.queue_id, bucket_id), Bucket)
        except CorruptionError as error:
            raise of_queue(error, self.queue.name) from error

    def change_bucket(self, bucket_id: int, change: object) -> None:
        """Move one of the queue's buckets."""
        try:
            self.tx.change(keys.bucket(self.queue.queue_id, bucket_id), change)
        except CorruptionError as error:
            raise of_queue(error, self.queue.name) from error

    def in_flight(self) -> int:
        """How many messages are in flight by now."""
        return self.queue.counts.in_flight + self.counts.in_flight

    def waits(self) -> bool:
        """Whether anything waits that is not in a lane."""
        now, by = self.queue.counts, self.counts
        return bool(
            now.waiting or now.scheduled or now.ready or by.waiting or by.ready or self._index
        )

    def add_in_flight(self, count: int) -> None:
        """Count messages that went in flight."""
        self.counts.in_flight += count
        if self._index is not None:
            self._index.counted()

    def change_alive(self, bucket_id: int, by: int) -> None:
        """Count by how many the messages of a bucket that are not done have changed."""
        self.alive[bucket_id] = self.alive.get(bucket_id, 0) + by

    def close(self) -> None:
        """Write what has changed."""
        if self._index is not None:
            self._index.close()
        if self.counts == _NOTHING and not (
            self.busy or self.alive or self.positions or self.letters
        ):
            return
        self.tx.change(
            self.key,
            Moved(
                self.tx.store_ms,
                self.counts,
                taken=list(self.taken.items()),
                positions=self.positions,
                busy=list(self.busy.items()),
                alive=list(self.alive.items()),
                paid_until_ms=self.paid_until_ms,
                skipped=self.skipped,
                letters=self.letters,
            ),
        )


_NOTHING = Counts()
