"""Withdrawal: lets queues go on in the log that took the name of a log that was set aside.

Messages of the common records become messages of the new log. The records behind them, the tail, are
only in the log that was set aside. So no claim, attempt or dedup digest of the tail may count for the
records of the new log:

    available, in flight   the messages leave the queue and their leases are lost
    done, failed           the messages stay, as messages of the log that was set aside; owed dead
                           letters are written from there

The queue then routes the new log, at most from the start of the tail on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from millstream.format import entries, keys
from millstream.format.ids import split_id
from millstream.log.reading.reader import entries_of
from millstream.log.rules.ancestry import Tail
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.bucket_changes import Withdrawn
from millstream.queue.model.queue_changes import SourceReplaced
from millstream.queue.model.routing_marks import mark_of
from millstream.queue.model.slots import AVAILABLE, IN_FLIGHT, Slots, Span
from millstream.queue.rules.aging import note_removed
from millstream.queue.rules.dead_letter import Owed
from millstream.queue.rules.endings import earliest
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.lookup import all_queues, all_rows
from millstream.queue.rules.notes import drop_notes
from millstream.queue.rules.repeats import decode_seen
from millstream.queue.service.decoded_entries import decoded_entry
from millstream.record import SetBackReader
from millstream.store.commit.transaction import WriteTransaction


def move_queues(tx: WriteTransaction, tail: Tail) -> list[SetBackReader]:
    """Move every queue of a log to the log that took its name; return the queues that go back."""
    queues = [queue.name for queue in all_queues(tx.view) if tail.log_id in queue.positions]
    moved = [_Withdrawal(tx, name, tail).run() for name in queues]
    return [reader for reader in moved if reader is not None]


class _Withdrawal:
    """A queue whose log was set aside."""

    def __init__(self, tx: WriteTransaction, name: str, tail: Tail) -> None:
        self._tx = tx
        self._tail = tail
        self._ledger = Ledger(tx, name)
        self._queue = self._ledger.queue
        self._waiting: dict[int, str] = {}
        """Claim ids of withdrawn available messages → their groups."""
        self._listed: set[int] = set()
        """Claim ids of withdrawn messages in lanes; a delayed message of these has an index row as
        well.
        """
        self._in_flight: Counter[str] = Counter()
        """The groups of withdrawn messages in flight."""
        self._withdrawn = 0
        """The number of withdrawn messages."""
        self._keeps_finished = False
        """Whether the queue keeps finished messages of the tail."""

    def run(self) -> SetBackReader | None:
        """Move the queue, and withdraw messages of the tail; None if the queue has not routed it."""
        tail, queue = self._tail, self._queue
        passed = queue.positions[tail.log_id]
        self._forget_repeats()
        for bucket_id in list(self._buckets()):
            self._withdraw(bucket_id)
        self._readdress_letters()
        goes_back = passed > tail.at or bool(self._withdrawn) or self._keeps_finished
        position = min(passed, max(tail.at, self._first_wanted())) if goes_back else passed
        replaced = SourceReplaced(
            log_id=tail.log_id,
            at=tail.at,
            end=tail.end if self._keeps_finished else -1,
            new_id=tail.new_id,
            position=position,
            goes_back=goes_back,
            lanes=self._unlisted(),
            withdrawn=self._withdrawn,
        )
        self._tx.change(self._ledger.key, replaced)
        self._unlist()
        self._ledger.close()
        if not goes_back:
            return None
        return SetBackReader(
            kind="queue", name=queue.name, passed=passed, offset=position, withdrawn=self._withdrawn
        )

    def _first_wanted(self) -> int:
        """Return the offset before which the queue's spec does not route."""
        start = self._queue.spec.start
        return 0 if start in ("earliest", "latest") else int(start)

    def _buckets(self) -> Iterator[int]:
        """Yield the buckets with messages of the log."""
        tx, log_id = self._tx, self._tail.log_id
        for key in tx.view.find_all(*keys.of_queue(keys.BUCKET, self._queue.queue_id)):
            if any(span.log_id == log_id for span in tx.entity(key, Bucket).spans):
                yield keys.pair(key)[1]

    def _withdraw(self, bucket_id: int) -> None:
        ledger, tail = self._ledger, self._tail
        bucket = ledger.bucket(bucket_id)
        gone = flying = total = 0
        removed: list[Slots] = []
        for span in bucket.spans:
            lost = tail_of(span, tail)
            if lost is None:
                continue
            total += lost.count
            for slots in bucket.runs(AVAILABLE, lost.slot, lost.slot + lost.count):
                gone += slots[1] - slots[0]
                removed.append(slots)
                for slot in range(*slots):
                    claim_id = bucket_id + slot
                    self._waiting[claim_id] = bucket.mark(slot)[1]
            for slots in bucket.runs(IN_FLIGHT, lost.slot, lost.slot + lost.count):
                flying += slots[1] - slots[0]
                removed.append(slots)
                self._in_flight.update(bucket.mark(slot)[1] for slot in range(*slots))
        self._withdrawn += gone + flying
        self._keeps_finished = self._keeps_finished or total > gone + flying
        ledger.change_bucket(bucket_id, Withdrawn(tail.log_id, tail.at, tail.new_id))
        ledger.counts.available -= gone
        if flying:
            ledger.add_in_flight(-flying)
            ledger.busy[bucket_id] = earliest(bucket)
        if gone + flying:
            ledger.change_alive(bucket_id, -gone - flying)
            note_removed(self._tx, self._queue.queue_id, bucket_id)
            drop_notes(self._tx, self._queue.queue_id, bucket_id, sorted(removed))

    def _readdress_letters(self) -> None:
        """Point owed dead letters of the common records at the new log."""
        if not self._queue.letters:
            return
        tail, tx = self._tail, self._tx
        for key, value in all_rows(tx.scan, *keys.of_queue(keys.LETTER, self._queue.queue_id)):
            owed = msgspec.msgpack.decode(value, type=Owed)
            if owed.log_id != tail.log_id:
                continue
            if owed.offset >= tail.at:
                self._keeps_finished = True
            else:
                tx.put(key, msgspec.msgpack.encode(replace(owed, log_id=tail.new_id)))

    def _unlisted(self) -> list[tuple[int, int, int]]:
        """Remove withdrawn messages from the lanes; return their lanes and numbers."""
        numbers = {split_id(claim_id)[1]: claim_id for claim_id in self._waiting}
        lane_ranges = []
        for lane, ranges in self._queue.lanes.items():
            for start, stop in ranges:
                for first, last in _runs(
                    number for number in range(start, stop) if number in numbers
                ):
                    lane_ranges.append((lane, first, last))
        for _, first, last in lane_ranges:
            self._ledger.counts.fresh -= last - first
            for number in range(first, last):
                claim_id = numbers[number]
                del self._waiting[claim_id]
                self._listed.add(claim_id)
        return lane_ranges

    def _unlist(self) -> None:
        """Remove withdrawn messages from the index, and choose new heads of their groups."""
        if self._waiting or self._listed:
            counts = self._ledger.counts
            counts.ready -= self._erase(keys.READY)
            counts.waiting -= self._erase(keys.RETRY)
            counts.scheduled -= self._erase(keys.SCHEDULE)
        if not self._queue.spec.group_by:
            return
        members: dict[str, set[int]] = {}
        for claim_id, group in self._waiting.items():
            members.setdefault(group, set()).add(claim_id)
        for group in sorted(members.keys() | self._in_flight.keys()):
            if group:
                gone = members.get(group, set())
                self._ledger.index.withdraw(group, gone, self._in_flight[group])

    def _erase(self, kind: int) -> int:
        """Remove withdrawn messages from rows of a type, which list neighbours; return their
        number.
        """
        tx, queue_id, erased = self._tx, self._queue.queue_id, 0
        for key, value in all_rows(tx.scan, *keys.of_queue(kind, queue_id)):
            claim = keys.ready_claim(key) if kind == keys.READY else keys.due_claim(key)
            first, count = claim[1], keys.run_count(value[:4])
            staying = [
                listed_id for listed_id in range(first, first + count) if not self._goes(listed_id)
            ]
            if len(staying) == count:
                continue
            tx.erase(key)
            erased += count - len(staying)
            for start, stop in _runs(iter(staying)):
                row_value = keys.run_value(stop - start, full=kind == keys.READY) + value[4:]
                tx.put(keys.with_claim(key, start), row_value)
        return erased

    def _goes(self, claim_id: int) -> bool:
        return claim_id in self._waiting or claim_id in self._listed

    def _forget_repeats(self) -> None:
        """Forget the digests of withdrawn messages, so that their repeats are taken; done messages
        still count.
        """
        spec, tx, tail = self._queue.spec, self._tx, self._tail
        if not spec.dedup_by:
            return
        alive = {offset for bucket_id in self._buckets() for offset in self._unfinished(bucket_id)}
        for first, value in entries_of(tx.view, tail.log_id, start=tail.at, stop=tail.end):
            entry, headers = decoded_entry(value)
            for index in range(entries.count(value)):
                if first + index in alive:
                    mark = mark_of(spec, entry.keys[index], headers[index])
                    self._forget(mark.digest, entry.appended[index])

    def _unfinished(self, bucket_id: int) -> Iterator[int]:
        """Yield the offsets of the tail with available or in-flight messages."""
        bucket = self._ledger.bucket(bucket_id)
        for state in (AVAILABLE, IN_FLIGHT):
            for slots in bucket.runs(state):
                for span in bucket.sources(*slots):
                    lost = tail_of(span, self._tail)
                    if lost is not None:
                        yield from range(lost.offset, lost.offset + lost.count)

    def _forget(self, digest: bytes, at_ms: int) -> None:
        tx, queue_id = self._tx, self._queue.queue_id
        until_ms = at_ms + self._queue.spec.dedup_window_ms
        key = keys.seen(queue_id, digest)
        if digest and [entry.until_ms for entry in decode_seen(tx.get(key))] == [until_ms]:
            tx.erase(key)
            tx.erase(keys.seen_until(queue_id, until_ms, digest))


def tail_of(span: Span, tail: Tail) -> Span | None:
    """Return the part of a span in a tail."""
    if span.log_id != tail.log_id or span.offset + span.count <= tail.at:
        return None
    skip = max(0, tail.at - span.offset)
    return span.cut(skip, span.count - skip, span.slot + skip)


def _runs(numbers: Iterator[int]) -> Iterator[Slots]:
    """Yield ascending numbers as ranges."""
    start = stop = -1
    for number in numbers:
        if number != stop:
            if start >= 0:
                yield start, stop
            start = number
        stop = number + 1
    if start >= 0:
        yield start, stop
