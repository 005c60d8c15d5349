"""The RFC's records of a bucket: what is active, done and failed, byte for byte.

They hold each message's metadata. It comes from the records as they were, or, for messages that are
new in the bucket, from the log that they came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from millstream.errors import CorruptionError
from millstream.format import entries, rfc
from millstream.format.ids import make_claim_id, split_id
from millstream.log.reader import entries_of
from millstream.queue.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT, Attempt, Slots, Span
from millstream.store.engine import Snapshot
from millstream.store.overlay import Overlay


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
        bucket = self._bucket
        available = [
            rfc.AvailableMessage(message_id, claim_id, bucket.attempts[slot], metadata)
            for slot, message_id, claim_id, metadata in self._messages(AVAILABLE)
        ]
        in_flight = [
            rfc.InFlightMessage(
                message_id,
                claim_id,
                self._claimed.get(slot, 0),
                bucket.until_ms[slot],
                bucket.attempts[slot],
                metadata,
            )
            for slot, message_id, claim_id, metadata in self._messages(IN_FLIGHT)
        ]
        done = [
            rfc.DoneMessage(
                message_id, claim_id, bucket.until_ms[slot], bucket.attempts[slot], metadata
            )
            for slot, message_id, claim_id, metadata in self._messages(DONE)
        ]
        failed = [
            rfc.FailedMessage(
                message_id, claim_id, bucket.until_ms[slot], bucket.attempts[slot], metadata
            )
            for slot, message_id, claim_id, metadata in self._messages(FAILED)
        ]
        return [
            (self._active, rfc.encode_active(available, in_flight)),
            (self._done, rfc.encode_done(done) if done else None),
            (self._failed, rfc.encode_failed(failed) if failed else None),
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

    def _messages(self, state: int) -> Iterator[tuple[int, int, int, bytes]]:
        """(slot, message id, claim id, metadata) of every message in a state."""
        for start, stop in self._bucket.runs(state):
            for span in self._bucket.sources(start, stop):
                metadata = self._metadata(span)
                for index in range(span.count):
                    slot = span.slot + index
                    claim_id = make_claim_id(self._exponent, self._base + slot)
                    yield slot, span.message_id + index, claim_id, metadata[index]

    def _metadata(self, span: Span) -> list[bytes]:
        ids = range(span.message_id, span.message_id + span.count)
        known = [self._known.get(message_id) for message_id in ids]
        if None not in known:
            return known  # type: ignore[return-value]
        found: list[bytes] = []
        stop = span.offset + span.count
        for first, value in entries_of(
            self._overlay, self._snapshot, span.log_id, start=span.offset, stop=stop
        ):
            entry = entries.decode(value)
            low, high = max(span.offset, first) - first, min(stop, first + len(entry)) - first
            found += [
                entries.encode_metadata(
                    key=entry.keys[i],
                    timestamp_ms=entry.timestamps[i],
                    headers=entry.headers[i],
                    appended_ms=entry.appended[i],
                )
                for i in range(low, high)
            ]
        if len(found) != span.count:
            raise CorruptionError(
                f"queue {self._bucket.queue!r}: the metadata of {span.count} messages from offset "
                f"{span.offset} is gone",
                what="message metadata",
                where=span.offset,
            )
        return found

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
