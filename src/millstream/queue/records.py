"""The RFC's records of a bucket: what is active, done and failed, byte for byte.

They hold each message's metadata. It comes from the records as they were, or, for messages that are
new in the bucket, from the log that they came from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol
from weakref import WeakKeyDictionary

from millstream.errors import CorruptionError
from millstream.format import entries, rfc
from millstream.format.ids import make_claim_id, split_id
from millstream.log.reader import entries_of
from millstream.queue.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT, Attempt, Slots, Span
from millstream.store.engine import Snapshot
from millstream.store.overlay import Overlay

ENTRIES_KEPT = 32

_recent: WeakKeyDictionary[Overlay, OrderedDict[tuple[int, int], entries.Entry]] = (
    WeakKeyDictionary()
)
"""Decoded entries of each open store; they never change."""


class _Columns:
    """Messages, column by column."""

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.message_ids: list[int] = []
        self.claim_ids: list[int] = []
        self.attempts: list[int] = []
        self.until_ms: list[int] = []
        self.metadata: list[bytes] = []


def _ended(found: _Columns) -> bytes | None:
    """The record of done or failed messages; None without any."""
    if not found.slots:
        return None
    columns = [found.message_ids, found.claim_ids, found.until_ms, found.attempts]
    return rfc.encode_ended_columns(columns, found.metadata)


class Contents(Protocol):
    """What there is to write: a bucket."""

    queue: str
    attempts: list[int]
    until_ms: list[int]
    tries: list[Attempt]
    tries_written: int

    def runs(self, state: int, start: int = 0, stop: int | None = None) -> Iterator[Slots]:
        """The ranges of slots that have a state."""

    def sources(self, start: int, stop: int) -> Iterator[Span]:
        """Where the messages of a range lie."""


class BucketRecords:
    """Writes the RFC's records of one bucket."""

    def __init__(
        self, bucket: Contents, bucket_id: int, overlay: Overlay, snapshot: Snapshot
    ) -> None:
        self._bucket = bucket
        self._exponent, self._base = split_id(bucket_id)
        queue = bucket.queue.encode()
        self._active = rfc.active_key(queue, bucket_id)
        self._done = rfc.done_key(queue, bucket_id)
        self._failed = rfc.failed_key(queue, bucket_id)
        self._overlay = overlay
        self._snapshot = snapshot
        self._known = self._stored_metadata()
        self._claimed = self._last_claims()

    def rows(self) -> list[tuple[bytes, bytes | None]]:
        """The three records; done and failed ones only if there are any."""
        available, in_flight = self._columns(AVAILABLE), self._columns(IN_FLIGHT)
        done, failed = self._columns(DONE), self._columns(FAILED)
        claimed = [self._claimed.get(slot, 0) for slot in in_flight.slots]
        active = rfc.encode_available_columns(
            [available.message_ids, available.claim_ids, available.attempts], available.metadata
        ) + rfc.encode_in_flight_columns(
            [
                in_flight.message_ids,
                in_flight.claim_ids,
                claimed,
                in_flight.until_ms,
                in_flight.attempts,
            ],
            in_flight.metadata,
        )
        return [
            (self._active, active),
            (self._done, _ended(done)),
            (self._failed, _ended(failed)),
            *self._attempts(),
        ]

    def _attempts(self) -> Iterator[tuple[bytes, bytes]]:
        """The RFC's attempts record of each message that was claimed alone since the last fold.

        Messages claimed side by side share one range in our own record instead: a row for each of
        a thousand would cost more than everything else about them.
        """
        bucket = self._bucket
        queue = bucket.queue.encode()
        history: dict[int, list[rfc.Attempt]] = {
            one.start: []
            for one in bucket.tries[bucket.tries_written :]
            if one.stop - one.start == 1
        }
        for one in bucket.tries if history else ():
            attempt = rfc.Attempt(one.at_ms, one.consumer)
            for slot in range(one.start, one.stop):
                if slot in history:
                    history[slot].append(attempt)
        for slot in sorted(history):
            (span,) = bucket.sources(slot, slot + 1)
            yield rfc.attempts_key(queue, span.message_id), rfc.encode_attempts(history[slot])

    def _columns(self, state: int) -> _Columns:
        """Every message in a state, column by column."""
        found = _Columns()
        bucket = self._bucket
        for start, stop in bucket.runs(state):
            for span in bucket.sources(start, stop):
                slots = range(span.slot, span.slot + span.count)
                first = make_claim_id(self._exponent, self._base + span.slot)
                found.slots += slots
                found.message_ids += range(span.message_id, span.message_id + span.count)
                found.claim_ids += range(first, first + span.count)
                found.attempts += bucket.attempts[slots.start : slots.stop]
                found.until_ms += bucket.until_ms[slots.start : slots.stop]
                found.metadata += self._metadata(span)
        return found

    def _metadata(self, span: Span) -> list[bytes]:
        if self._known:
            ids = range(span.message_id, span.message_id + span.count)
            known = [self._known.get(message_id) for message_id in ids]
            if None not in known:
                return known  # type: ignore[return-value]
        found: list[bytes] = []
        position, stop = span.offset, span.offset + span.count
        while position < stop:
            first, entry = self._entry(span.log_id, position)
            end = min(stop, first + len(entry))
            found += entries.encode_metadata_column(entry, position - first, end - first)
            position = end
        return found

    def _entry(self, log_id: int, offset: int) -> tuple[int, entries.Entry]:
        """The entry that covers an offset; the last few are remembered, for all queues on a log."""
        recent = _recent.setdefault(self._overlay, OrderedDict())
        for (found_log, first), entry in reversed(recent.items()):
            if found_log == log_id and first <= offset < first + len(entry):
                return first, entry
        for first, value in entries_of(
            self._overlay, self._snapshot, log_id, start=offset, stop=offset + 1
        ):
            entry = recent[log_id, first] = entries.decode(value)
            if len(recent) > ENTRIES_KEPT:
                recent.popitem(last=False)
            return first, entry
        raise CorruptionError(
            f"queue {self._bucket.queue!r}: the metadata of the message at offset {offset} is gone",
            what="message metadata",
            where=offset,
        )

    def _stored_metadata(self) -> dict[int, bytes]:
        known: dict[int, bytes] = {}
        active = self._snapshot.get(self._active)
        if active is not None:
            available, in_flight = rfc.decode_active(active)
            known.update((message.message_id, message.metadata) for message in available)
            known.update((message.message_id, message.metadata) for message in in_flight)
        done, failed = self._snapshot.get(self._done), self._snapshot.get(self._failed)
        if done is not None:
            known.update((m.message_id, m.metadata) for m in rfc.decode_done(done))
        if failed is not None:
            known.update((m.message_id, m.metadata) for m in rfc.decode_failed(failed))
        return known

    def _last_claims(self) -> dict[int, int]:
        """When the messages in flight were claimed."""
        flying = {slot for run in self._bucket.runs(IN_FLIGHT) for slot in range(*run)}
        found: dict[int, int] = {}
        for attempt in self._bucket.tries if flying else ():
            for slot in range(attempt.start, attempt.stop):
                if slot in flying:
                    found[slot] = attempt.at_ms
        return found
