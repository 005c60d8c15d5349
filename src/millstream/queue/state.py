"""What the store keeps of a queue besides its messages: its spec, and where everything stands.

Claim numbers are given out in order and never again. Below `fresh` every number has been claimed at
least once; from `fresh` to `next` messages are routed and untouched. `busy` tells which buckets have
messages in flight, and a time before which none of their leases ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec
from msgspec import Struct, field

from millstream.format import rfc
from millstream.format.ids import capacity_of, make_bucket_id, make_claim_id
from millstream.queue.slots import Slots
from millstream.queue.spec import QueueSpec
from millstream.store.engine import Snapshot
from millstream.store.entity import Entity
from millstream.store.overlay import Overlay


class Counts(Struct, array_like=True):
    """How many messages are in each state; or by how much that changes."""

    available: int = 0
    in_flight: int = 0
    done: int = 0
    failed: int = 0
    waiting: int = 0
    """Of the available ones, those that wait for a retry or a delay."""


class Specified(Struct, array_like=True, frozen=True, tag=1):
    """The queue exists, or its spec was altered; `numbers_from` begins another bucket size."""

    queue_id: int
    name: str
    spec: QueueSpec
    at_ms: int
    numbers_from: int


class Moved(Struct, array_like=True, frozen=True, tag=2):
    """Messages were routed, claimed, or finished. -1 leaves a number as it is."""

    counts: Counts = field(default_factory=Counts)
    next: int = -1
    fresh: int = -1
    positions: list[tuple[int, int]] = field(default_factory=list)
    busy: list[tuple[int, int]] = field(default_factory=list)
    """Buckets and the earliest end of a lease in them; 0: none is in flight there."""
    alive: list[tuple[int, int]] = field(default_factory=list)
    """Buckets and by how much the number of their messages that are not done changes."""


class Paused(Struct, array_like=True, frozen=True, tag=3):
    """Claims are held back, or no longer."""

    paused: bool


class QueueState(Entity, array_like=True):
    """One queue."""

    queue_id: int = 0
    name: str = ""
    spec: QueueSpec = field(default_factory=QueueSpec)
    created_ms: int = 0
    eras: list[tuple[int, int, int]] = field(default_factory=list)
    """(first claim number, end, bucket exponent) of each bucket size; the last has end -1."""
    next: int = 0
    fresh: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    busy: dict[int, int] = field(default_factory=dict)
    alive: dict[int, int] = field(default_factory=dict)
    """Buckets with messages that are available, in flight or failed → how many."""
    paused: bool = False

    changes: ClassVar = Specified | Moved | Paused

    def apply(self, change: Specified | Moved | Paused) -> None:
        """Move to the next state."""
        match change:
            case Moved():
                self._move(change)
            case Paused():
                self.paused = change.paused
            case Specified():
                if not self.queue_id:
                    self.queue_id, self.created_ms = change.queue_id, change.at_ms
                self.name, self.spec = change.name, change.spec
                self._begin_era(change.spec.bucket_exponent, change.numbers_from)

    def _begin_era(self, exponent: int, first: int) -> None:
        if self.eras:
            started, _, last = self.eras[-1]
            if last == exponent:
                return
            self.eras[-1] = (started, self.next, last)
        if self.fresh == self.next:
            self.fresh = first
        self.next = first
        self.eras.append((first, -1, exponent))

    def _move(self, change: Moved) -> None:
        counts, by = self.counts, change.counts
        counts.available += by.available
        counts.in_flight += by.in_flight
        counts.done += by.done
        counts.failed += by.failed
        counts.waiting += by.waiting
        if change.next >= 0:
            self.next = change.next
        if change.fresh >= 0:
            self.fresh = change.fresh
        self.positions.update(change.positions)
        for bucket_id, until_ms in change.busy:
            if until_ms:
                self.busy[bucket_id] = until_ms
            else:
                self.busy.pop(bucket_id, None)
        for bucket_id, by_count in change.alive:
            left = self.alive.get(bucket_id, 0) + by_count
            if left:
                self.alive[bucket_id] = left
            else:
                self.alive.pop(bucket_id, None)

    def exists(self) -> bool:
        """Whether it was specified."""
        return self.queue_id != 0

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, Slots]]:
        """The buckets that a range of claim numbers lies in, and the slots in each."""
        for first, last, exponent in self._eras(start, stop):
            capacity = capacity_of(exponent)
            while first < last:
                base = first // capacity * capacity
                end = min(last, base + capacity)
                yield make_bucket_id(exponent, base), (first - base, end - base)
                first = end

    def _eras(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Pieces of a range by bucket size; numbers skipped at a change of size are left out."""
        for first, end, exponent in self.eras:
            low, high = max(first, start), stop if end < 0 else min(end, stop)
            if low < high:
                yield low, high, exponent

    def claim_id(self, bucket_id: int, slot: int) -> int:
        """The claim id of a slot."""
        exponent, base = bucket_id >> 60, bucket_id & ((1 << 60) - 1)
        return make_claim_id(exponent, base + slot)

    def records(
        self, key: bytes, overlay: Overlay, snapshot: Snapshot
    ) -> list[tuple[bytes, bytes | None]]:
        """The RFC's spec record, and ours beside it."""
        spec_key = rfc.queue_spec_key(key[2:])
        if not self.exists():
            return [(key, None), (spec_key, None)]
        spec = self.spec
        literal = rfc.QueueSpecRecord(
            spec.filter,
            spec.max_attempts,
            spec.done_retention_s,
            spec.bucket_exponent,
            spec.description,
        )
        return [
            (key, msgspec.msgpack.encode(self)),
            (spec_key, rfc.encode_queue_spec(literal)),
        ]
