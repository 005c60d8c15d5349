"""The ledger: the changes of an operation to a queue, collected and written as a single change.

Rules read the queue through the ledger, so a claim already sees the effects of the acknowledgement
before it in the same operation.
"""

from __future__ import annotations

from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.counts import Counts
from millstream.queue.model.message_change import MessageChange
from millstream.queue.model.queue_changes import Moved
from millstream.queue.model.spec import no_queue
from millstream.queue.model.state import QueueState
from millstream.queue.rules.change_log import append_changes, changes_of
from millstream.queue.rules.index import Index
from millstream.queue.rules.lookup import of_queue
from millstream.store.commit.transaction import WriteTransaction


class Ledger:
    """A queue during an operation; `close` writes the collected changes."""

    def __init__(self, tx: WriteTransaction, name: str) -> None:
        self.tx = tx
        self.key = keys.queue(name)
        self.queue = tx.entity(self.key, QueueState)
        if not self.queue.queue_id:
            raise no_queue(name)
        self.counts = Counts()
        self.busy: dict[int, int] = {}
        self.alive: dict[int, int] = {}
        self.lane_advances: dict[int, int] = {}
        self.positions: list[tuple[int, int]] = []
        self.letters = 0
        self.is_overtaken = False
        """Whether another caller has routed these records since the operation read them."""
        self.skipped: list[tuple[int, int, int]] = []
        self.digests: list[tuple[bytes, int, int]] = []
        """Placed messages with a dedup id: digest, time of the append, claim id."""
        self.paid_until_ms: float | None = None
        self._changes: list[MessageChange] = []
        """Records for the queue's log of changes."""
        self._index: Index | None = None

    @property
    def index(self) -> Index:
        """The index of messages that are not claimed in number order."""
        if self._index is None:
            self._index = Index(self.tx, self.queue, self.counts)
        return self._index

    def bucket(self, bucket_id: int) -> Bucket:
        """Return a bucket of the queue."""
        try:
            return self.tx.entity(keys.bucket(self.queue.queue_id, bucket_id), Bucket)
        except CorruptionError as error:
            raise of_queue(error, self.queue.name) from error

    def change_bucket(self, bucket_id: int, change: object) -> None:
        """Apply a change to a bucket of the queue."""
        if self.queue.spec.changes:
            bucket = self.bucket(bucket_id)
            self._changes += changes_of(self.tx, self.queue, bucket_id, bucket, change)
        try:
            self.tx.change(keys.bucket(self.queue.queue_id, bucket_id), change)
        except CorruptionError as error:
            raise of_queue(error, self.queue.name) from error

    def in_flight(self) -> int:
        """Return the number of messages in flight, including this operation's changes."""
        return self.queue.counts.in_flight + self.counts.in_flight

    def waits(self) -> bool:
        """Return whether any available message is outside the lanes."""
        stored, added = self.queue.counts, self.counts
        return bool(
            stored.waiting
            or stored.scheduled
            or stored.ready
            or added.waiting
            or added.ready
            or self._index
        )

    def add_in_flight(self, count: int) -> None:
        """Count messages that went in flight."""
        self.counts.in_flight += count
        if self._index is not None:
            self._index.counted()

    def change_alive(self, bucket_id: int, by: int) -> None:
        """Add a difference to the number of unfinished messages of a bucket."""
        self.alive[bucket_id] = self.alive.get(bucket_id, 0) + by

    def close(self) -> None:
        """Write the collected changes."""
        if self._changes:
            append_changes(self.tx, self.queue, self._changes)
            self._changes = []
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
                lane_advances=list(self.lane_advances.items()),
                positions=self.positions,
                busy=list(self.busy.items()),
                alive=list(self.alive.items()),
                paid_until_ms=self.paid_until_ms,
                skipped=self.skipped,
                letters=self.letters,
            ),
        )


_NOTHING = Counts()
