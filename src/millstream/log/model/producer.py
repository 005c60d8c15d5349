"""Producers: the memory that makes a repeated append harmless.

A producer numbers its appends to a log. The store remembers the offsets of the last appends, answers a
repeat from memory, and stores nothing. A higher epoch fences writers with a lower epoch.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from millstream.errors import Fenced, OutOfSequence
from millstream.record import Producer
from millstream.store.state.entity import Entity


class Produced(Struct, array_like=True, frozen=True):
    """An append with its sequence and offset, and the limits of the memory."""

    epoch: int
    sequence: int
    first: int
    count: int
    at_ms: int
    keep: int
    idle_ms: int


class ProducerState(Entity, array_like=True):
    """The state of a producer on a log."""

    epoch: int = -1
    last: int = -1
    at_ms: int = 0
    idle_ms: int = 0
    offsets: list[tuple[int, int]] = field(default_factory=list)
    """(first offset, count) of the last appends, the newest last, with contiguous sequences."""

    changes: ClassVar = Produced

    def apply(self, change: Produced) -> None:
        """Remember an append."""
        if change.epoch != self.epoch or change.sequence != self.last + 1:
            self.offsets = []
        self.epoch, self.last = change.epoch, change.sequence
        self.at_ms, self.idle_ms = change.at_ms, change.idle_ms
        self.offsets.append((change.first, change.count))
        if len(self.offsets) > change.keep:
            del self.offsets[: -change.keep]

    def exists(self) -> bool:
        """Return whether the producer has appended."""
        return self.epoch >= 0

    def idle(self, now_ms: int) -> bool:
        """Return whether the producer was idle long enough to be forgotten."""
        return now_ms - self.at_ms > self.idle_ms

    def repeated(self, producer: Producer, *, now_ms: int) -> tuple[int, int] | None:
        """Return the offset and count of a repeated append; None for a new append.

        Raises `OutOfSequence` for a sequence that leaves a gap or is too old to remember, and `Fenced`
        for an earlier epoch. An idle producer may begin with any sequence.
        """
        if self.epoch < 0 or self.idle(now_ms):
            return None
        if producer.epoch < self.epoch:
            raise Fenced(
                f"producer {producer.name!r} goes on under epoch {self.epoch}; "
                f"{producer.epoch} is over",
                epoch=self.epoch,
            )
        if producer.epoch > self.epoch or producer.sequence == self.last + 1:
            return None
        back = self.last - producer.sequence
        if 0 <= back < len(self.offsets):
            return self.offsets[-1 - back]
        raise OutOfSequence(
            f"producer {producer.name!r}: sequence {producer.sequence}, expected {self.last + 1}",
            expected=self.last + 1,
            sequence=producer.sequence,
        )
