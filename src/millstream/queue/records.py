"""The RFC's records of a bucket: what is active, done and failed, byte for byte.

They hold each message's metadata. It comes from the records as they were, or, for messages that are
new in the bucket, from the log that they came from.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol
from weakref import WeakKeyDictionary

from millstream.errors import CorruptionError
from millstream.format import entries, rfc
from millstream.format.encodings import encode_key_u64
from millstream.format.ids import make_claim_id, split_id
from millstream.format.stretch import Scattered, Stretch
from millstream.log.reader import RowMoved, entries_of
from millstream.log.recent import near_metadata
from millstream.queue.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT, Attempt, End, Slots, Span
from millstream.store.engine import Snapshot
from millstream.store.overlay import Overlay

ENTRIES_KEPT = 32

LONG = 64
"""The metadata of so many neighbours is looked for in their log before the records as they were."""

ATTEMPTS_PER_PAUSE = 64

Held = tuple[int, entries.MetadataColumn]
"""The first offset of an entry, and the metadata of its records."""

_recent: WeakKeyDictionary[Overlay, OrderedDict[int, Held]] = WeakKeyDictionary()
"""Entries of each open store by their first message id, decoded once for all queues on a log.

A message is known by its id, which is never given out again, and not only by its offset: that may be
another's once its log was set back.
"""


Tries = tuple[tuple[int, str], ...]
"""The attempts at a message: when, and by whom."""


class _PackedTries(dict[Tries, bytes]):
    """Attempts as the RFC's record has them, packed once for all messages that were claimed alike."""

    def __missing__(self, tries: Tries) -> bytes:
        packed = self[tries] = rfc.encode_attempts([rfc.Attempt(*one) for one in tries])
        return packed


class Contents(Protocol):
    """What there is to write: a bucket."""

    queue: str
    attempts: Sequence[int]
    until_ms: Sequence[int]
    tries: list[Attempt]
    tries_written: int
    ends: list[End]

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
        self._recent = _recent.setdefault(overlay, OrderedDict())
        self._last: Held | None = None
        """The entry that was used last."""

    def rows(self) -> list[tuple[bytes, bytes | None]]:
        """The three records; done and failed ones only if there are any."""
        attempts, until_ms = self._bucket.attempts, self._bucket.until_ms
        pause = self._overlay.pause
        available = self._stretches(AVAILABLE, attempts)
        in_flight = self._stretches(IN_FLIGHT, self._claimed_ms(), until_ms, attempts)
        pause()
        done = self._stretches(DONE, until_ms, attempts)
        pause()
        failed = self._stretches(FAILED, until_ms, attempts)
        active = rfc.encode_available_stretches(available)
        active += rfc.encode_in_flight_stretches(in_flight)
        pause()
        return [
            (self._active, active),
            *self._ended(self._done, DONE, done),
            *self._ended(self._failed, FAILED, failed),
            *self._attempts(),
        ]

    def _ended(
        self, key: bytes, state: int, stretches: list[Stretch | Scattered]
    ) -> list[tuple[bytes, bytes | None]]:
        """The record of what is done, or failed; if none is, it goes if there ever was one."""
        if stretches:
            return [(key, rfc.encode_ended_stretches(stretches))]
        return [(key, None)] if any(end.state == state for end in self._bucket.ends) else []

    def _attempts(self) -> Iterator[tuple[bytes, bytes]]:
        """The RFC's attempts record of each message that was claimed alone since the last fold.

        Messages claimed side by side share one range in our own record instead: a row for each of
        a thousand would cost more than everything else about them.
        """
        bucket, packed = self._bucket, _PackedTries()
        fresh = [one for one in bucket.tries[bucket.tries_written :] if one.stop - one.start == 1]
        tries: dict[int, Tries] = {one.start: ((one.at_ms, one.consumer),) for one in fresh}
        tries |= self._repeated([slot for slot in tries if bucket.attempts[slot] > 1])
        prefix = rfc.attempts_prefix(bucket.queue.encode())
        for at, (slot, message_id) in enumerate(self._messages(sorted(tries))):
            if not at % ATTEMPTS_PER_PAUSE:
                self._overlay.pause()
            yield prefix + encode_key_u64(message_id), packed[tries[slot]]

    def _repeated(self, slots: list[int]) -> dict[int, Tries]:
        """All attempts at messages that were claimed more than once."""
        found: dict[int, list[tuple[int, str]]] = {slot: [] for slot in slots}
        for one in self._bucket.tries if found else ():
            for slot in range(one.start, one.stop):
                if slot in found:
                    found[slot].append((one.at_ms, one.consumer))
        return {slot: tuple(of_slot) for slot, of_slot in found.items()}

    def _messages(self, slots: list[int]) -> Iterator[tuple[int, int]]:
        """Slots, which ascend, and the ids of their messages."""
        for span in self._bucket.sources(slots[0], slots[-1] + 1) if slots else ():
            ahead = span.message_id - span.slot
            some = slots[bisect_left(slots, span.slot) : bisect_left(slots, span.slot + span.count)]
            for slot in some:
                yield slot, slot + ahead

    def _stretches(self, state: int, *columns: Sequence[int]) -> list[Stretch | Scattered]:
        """Every message in a state, with some columns of the bucket."""
        found: list[Stretch | Scattered] = []
        alone: list[Span] = []
        bucket = self._bucket
        for start, stop in bucket.runs(state):
            for span in bucket.sources(start, stop):
                if span.count == 1:
                    alone.append(span)
                    continue
                if alone:
                    found.append(self._scattered(alone, columns))
                    alone = []
                found += self._stretch(span, columns)
        if alone:
            found.append(self._scattered(alone, columns))
        return found

    def _stretch(self, span: Span, columns: Sequence[Sequence[int]]) -> Iterator[Stretch]:
        """Neighbours, with what they have in common."""
        slot, message_id = span.slot, span.message_id
        for metadata in self._metadata(span):
            count = len(metadata.rests)
            claim_id = make_claim_id(self._exponent, self._base + slot)
            numbers = tuple([column[slot : slot + count] for column in columns])
            prefix, rests, sizes, _ = metadata
            yield Stretch(message_id, claim_id, numbers, prefix, rests, sizes)
            slot += count
            message_id += count

    def _scattered(self, alone: list[Span], columns: Sequence[Sequence[int]]) -> Scattered:
        """Messages that have no neighbours."""
        first = make_claim_id(self._exponent, self._base)
        slots = [span.slot for span in alone]
        return Scattered(
            [span.message_id for span in alone],
            [first + slot for slot in slots],
            tuple([[column[slot] for slot in slots] for column in columns]),
            [self._metadata_of(span) for span in alone],
        )

    def _metadata_of(self, span: Span) -> bytes:
        if self._last is not None and _is_in(self._last, span.offset, span.message_id):
            first, metadata = self._last
            return metadata.prefix + metadata.rests[span.offset - first]
        stored = self._stored.get(span.message_id)
        if stored is not None:
            return stored
        (metadata,) = self._metadata(span)
        return metadata.prefix + metadata.rests[0]

    def _metadata(self, span: Span) -> Iterator[entries.MetadataColumn]:
        """The metadata of adjacent messages, some at a time, from wherever it is at hand."""
        position, stop = span.offset, span.offset + span.count
        while position < stop:
            message_id = span.message_id + position - span.offset
            held = self._remembered(position, message_id) or self._near(position, message_id)
            if held is None and stop - position >= LONG:
                held = self._find(span.log_id, position, message_id)
            if held is None:
                ids = range(message_id, span.message_id + span.count)
                if stored := self._stored_metadata(ids):
                    yield entries.metadata_column(stored, ids)
                    return
                held = self._read(span.log_id, position)
            first, metadata = held
            some = metadata.cut(position - first, stop - first)
            yield some
            position += len(some.rests)

    def _stored_metadata(self, ids: range) -> list[bytes]:
        """The metadata of some messages, if the records as they were have that of all."""
        stored = self._stored
        try:
            return [stored[message_id] for message_id in ids]
        except KeyError:
            return []

    def _remembered(self, offset: int, message_id: int) -> Held | None:
        """The entry that covers a message, if it was used lately."""
        if self._last is not None and _is_in(self._last, offset, message_id):
            return self._last
        for held in reversed(self._recent.values()):
            if _is_in(held, offset, message_id):
                self._last = held
                return held
        return None

    def _near(self, offset: int, message_id: int) -> Held | None:
        """The entry that covers a message, if a consumer has read it lately."""
        found = near_metadata(self._overlay).find(message_id)
        if found is None or found[0] + message_id - found[1].header.first_id != offset:
            return None
        return self._remember((found[0], entries.metadata_column_of(found[1])))

    def _find(self, log_id: int, offset: int, message_id: int) -> Held | None:
        """The entry that covers a message, from its log, if that still has it."""
        try:
            held = self._read(log_id, offset)
        except (CorruptionError, RowMoved):
            return None
        return held if _is_in(held, offset, message_id) else None

    def _read(self, log_id: int, offset: int) -> Held:
        """The entry of a log that covers an offset."""
        for first, value in entries_of(
            self._overlay, self._snapshot, log_id, start=offset, stop=offset + 1
        ):
            return self._remember((first, entries.decode_metadata_column(value, trusted=True)))
        raise CorruptionError(
            f"queue {self._bucket.queue!r}: the metadata of the message at offset {offset} is gone",
            what="message metadata",
            where=offset,
        )

    def _remember(self, held: Held) -> Held:
        """Keep an entry for the next bucket, unless it is a single record."""
        ids = held[1].ids
        if len(ids) > 1:
            self._recent[ids[0]] = self._last = held
            if len(self._recent) > ENTRIES_KEPT:
                self._recent.popitem(last=False)
        return held

    @cached_property
    def _stored(self) -> dict[int, bytes]:
        """The metadata in the records as they were, by message id."""
        active, done, failed = map(self._snapshot.get, (self._active, self._done, self._failed))
        known = {} if active is None else rfc.decode_active_metadata(active)
        for ended in (done, failed):
            if ended is not None:
                known |= rfc.decode_ended_metadata(ended)
        return known

    def _claimed_ms(self) -> Sequence[int]:
        """When each slot was claimed last; it matters only while any is in flight."""
        bucket = self._bucket
        found = array("q", bytes(8 * len(bucket.attempts)))
        if any(bucket.runs(IN_FLIGHT)):
            for one in bucket.tries:
                found[one.start : one.stop] = array("q", [one.at_ms]) * (one.stop - one.start)
        return found


def _is_in(held: Held, offset: int, message_id: int) -> bool:
    """Whether a message is in an entry."""
    first, metadata = held
    at = offset - first
    return 0 <= at < len(metadata.ids) and metadata.ids[at] == message_id
