"""Producers: what makes a repeated append harmless.

A producer counts its appends to a log by one. The last of them are remembered with the offsets
that they got; a repeat is answered from there and stores nothing. A higher epoch fences
writers that still use a lower one.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from millstream.errors import Fenced, OutOfSequence
from millstream.record import Producer
from millstream.store.state.entity import Entity


class Produced(Struct, array_like=True, frozen=True):
    """An append with its producer sequence and offset, and how many are remembered for how long."""

    epoch: int
    sequence: int
    first: int
    count: int
    at_ms: int
    keep: int
    idle_ms: int


class ProducerState(Entity, array_like=True):
    """One producer on one log."""

    epoch: int = -1
    last: int = -1
    at_ms: int = 0
    idle_ms: int = 0
    offsets: list[tuple[int, int]] = field(default_factory=list)
    """(first offset, count) of the last appends, the newest last; their sequences are adjacent."""

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
        """A producer that never appended has no record."""
        return self.epoch >= 0

    def idle(self, now_ms: int) -> bool:
        """Whether it has been idle for so long that it may be forgotten."""
        return now_ms - self.at_ms > self.idle_ms

    def repeated(self, producer: Producer, *, now_ms: int) -> tuple[int, int] | None:
        """The offset and count of an append that is here already; None for a new one.

        Raises `OutOfSequence` for one that is too old to tell, or that leaves a gap, and `Fenced`
        for one of an earlier epoch. After a week's silence any sequence may begin.
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
