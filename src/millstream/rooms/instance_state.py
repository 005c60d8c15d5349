"""The state of an instance: a process that serves rooms, under a name that it holds by a lease."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from millstream.store.state.entity import Entity

ENDED_KEPT = 8
"""The number of ended generations that are remembered, with their ends."""


class InstanceHeld(Struct, array_like=True, frozen=True, tag=1):
    """A process has taken the name; the generation before ended at `ended_ms`.

    Without a holder, the generation itself has ended at that time, and the name is free.
    """

    holder: str
    generation: int
    until_ms: int
    """The end of the lease, in store time."""
    seen_ms: int
    """The wall time of the change."""
    ended_ms: int
    """The end of the generation before, in store time."""


class InstanceProlonged(Struct, array_like=True, frozen=True, tag=2):
    """The lease was prolonged, or ended if its end is in the past."""

    until_ms: int
    seen_ms: int


class InstanceState(Entity, array_like=True):
    """An instance."""

    holder: str = ""
    """The process that holds the name; empty after a stop, or after the process was found dead."""
    generation: int = 0
    until_ms: int = 0
    seen_ms: int = 0
    ended: dict[int, int] = field(default_factory=dict)
    """Earlier generations and their ends, in store time; even older generations ended before."""

    changes: ClassVar = InstanceHeld | InstanceProlonged
    computed: ClassVar = (InstanceProlonged,)

    def apply(self, change: InstanceHeld | InstanceProlonged) -> None:
        """Apply a change."""
        if isinstance(change, InstanceHeld):
            if self.generation:
                ended = [*self.ended.items(), (self.generation, change.ended_ms)]
                self.ended = dict(ended[-ENDED_KEPT:])
            self.holder, self.generation = change.holder, change.generation
        self.until_ms, self.seen_ms = change.until_ms, change.seen_ms

    def exists(self) -> bool:
        """Whether a process has ever held the name."""
        return self.generation != 0

    def is_silent(self, *, store_ms: int) -> bool:
        """Whether the lease has ended although the process has not stopped, as far as is known."""
        return bool(self.holder) and self.until_ms <= store_ms

    def end_of(self, generation: int, *, store_ms: int) -> int | None:
        """Return when a generation ended, in store time; None for a living generation."""
        if generation == self.generation:
            return self.until_ms if self.until_ms <= store_ms else None
        return self.ended.get(generation, 0)
