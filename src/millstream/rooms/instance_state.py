"""An instance: one process that serves rooms, under a name that it holds alone by a lease."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from millstream.store.state.entity import Entity

ENDED_KEPT = 8
"""Of the last generations so many are remembered, with their ends."""


class InstanceHeld(Struct, array_like=True, frozen=True, tag=1):
    """A process has taken the name; the generation before it ended at `ended_ms`.

    Without a holder, the generation itself has ended then, and nobody has the name.
    """

    holder: str
    generation: int
    until_ms: int
    """The end of its lease, in store time."""
    seen_ms: int
    """The wall time then."""
    ended_ms: int
    """In store time."""


class InstanceProlonged(Struct, array_like=True, frozen=True, tag=2):
    """Its lease holds longer; an end that has come already ends it."""

    until_ms: int
    seen_ms: int


class InstanceState(Entity, array_like=True):
    """One instance."""

    holder: str = ""
    """The process that holds the name; empty once it stopped, or was found to be dead."""
    generation: int = 0
    until_ms: int = 0
    seen_ms: int = 0
    ended: dict[int, int] = field(default_factory=dict)
    """Earlier generations and when they ended, in store time; older ones ended before."""

    changes: ClassVar = InstanceHeld | InstanceProlonged
    computed: ClassVar = (InstanceProlonged,)

    def apply(self, change: InstanceHeld | InstanceProlonged) -> None:
        """Move to the next state."""
        if isinstance(change, InstanceHeld):
            if self.generation:
                ended = [*self.ended.items(), (self.generation, change.ended_ms)]
                self.ended = dict(ended[-ENDED_KEPT:])
            self.holder, self.generation = change.holder, change.generation
        self.until_ms, self.seen_ms = change.until_ms, change.seen_ms

    def exists(self) -> bool:
        """Whether a process has ever held it."""
        return self.generation != 0

    def is_silent(self, *, store_ms: int) -> bool:
        """Whether its lease has ended though its process has not stopped, as far as is known."""
        return bool(self.holder) and self.until_ms <= store_ms

    def end_of(self, generation: int, *, store_ms: int) -> int | None:
        """When a generation ended, in store time; None if it has not."""
        if generation == self.generation:
            return self.until_ms if self.until_ms <= store_ms else None
        return self.ended.get(generation, 0)
