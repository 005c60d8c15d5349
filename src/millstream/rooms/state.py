"""What the store keeps of a room besides its log: settings, and counts of what belongs to it."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from millstream.rooms.settings import DEFAULTS, RoomSettings
from millstream.store.state.entity import Entity

RESUMED_MAX = 1_000
"""Clients of a room that are remembered to have come back."""


class RoomSpecified(Struct, array_like=True, frozen=True, tag=1):
    """The room's settings are these from now on."""

    settings: RoomSettings


class RetainedCounted(Struct, array_like=True, frozen=True, tag=2):
    """So many more values are retained, of so many more bytes."""

    count: int
    bytes: int


class PeopleCounted(Struct, array_like=True, frozen=True, tag=3):
    """So many more users are there, and so many more connections."""

    users: int
    connections: int


class ClientResumed(Struct, array_like=True, frozen=True, tag=4):
    """A client has come back: what its earlier connections have sent is not stored any more."""

    client: str


RoomChange = RoomSpecified | RetainedCounted | PeopleCounted | ClientResumed
"""What can happen to it."""


class RoomState(Entity, array_like=True):
    """One room. One of which nothing was said has the defaults, and no record."""

    settings: RoomSettings | None = None
    retained: int = 0
    retained_bytes: int = 0
    users: int = 0
    connections: int = 0
    """Of these users; those that have ended do not count."""
    generation: int = 0
    """How often a client came back."""
    resumed: dict[str, int] = field(default_factory=dict)
    """The generation in which each client came back last; the latest last, at most so many."""

    changes: ClassVar = RoomChange
    computed: ClassVar = (RetainedCounted, PeopleCounted, ClientResumed)

    def apply(self, change: RoomChange) -> None:
        """Move to the next state."""
        match change:
            case ClientResumed():
                self.generation += 1
                self.resumed.pop(change.client, None)
                self.resumed[change.client] = self.generation
                if len(self.resumed) > RESUMED_MAX:
                    del self.resumed[next(iter(self.resumed))]
            case RetainedCounted():
                self.retained += change.count
                self.retained_bytes += change.bytes
            case PeopleCounted():
                self.users += change.users
                self.connections += change.connections
            case RoomSpecified():
                self.settings = change.settings

    def exists(self) -> bool:
        """Whether there is anything to remember."""
        counts = (self.retained, self.users, self.connections, self.generation)
        return self.settings is not None or any(counts)

    def view(self) -> RoomSettings:
        """The settings that hold now."""
        return self.settings or DEFAULTS
