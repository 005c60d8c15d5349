"""The state of a room besides its log: its settings and counters."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from millstream.rooms.settings import DEFAULTS, RoomSettings
from millstream.store.state.entity import Entity

RESUMED_MAX = 1_000
"""Clients of a room whose return is remembered."""


class RoomSpecified(Struct, array_like=True, frozen=True, tag=1):
    """The room has new settings."""

    settings: RoomSettings


class RetainedCounted(Struct, array_like=True, frozen=True, tag=2):
    """The number and size of retained values have changed by these amounts."""

    count: int
    bytes: int


class PeopleCounted(Struct, array_like=True, frozen=True, tag=3):
    """The numbers of users and connections have changed by these amounts."""

    users: int
    connections: int


class ClientResumed(Struct, array_like=True, frozen=True, tag=4):
    """A client has come back: frames of its earlier connections are no longer stored."""

    client: str


class RoomTaken(Struct, array_like=True, frozen=True, tag=5):
    """The room goes on with this state in a log that took the name of a log set aside."""

    settings: RoomSettings | None
    retained: int
    retained_bytes: int
    users: int
    connections: int
    generation: int
    resumed: dict[str, int]


RoomChange = RoomSpecified | RetainedCounted | PeopleCounted | ClientResumed | RoomTaken
"""The changes of a room."""


class RoomState(Entity, array_like=True):
    """A room. A room without settings has the defaults, and no row."""

    settings: RoomSettings | None = None
    retained: int = 0
    retained_bytes: int = 0
    users: int = 0
    connections: int = 0
    """Open connections of these users."""
    generation: int = 0
    """How often a client came back."""
    resumed: dict[str, int] = field(default_factory=dict)
    """The generation in which each client last came back; the most recent clients, newest last."""

    changes: ClassVar = RoomChange
    computed: ClassVar = (RetainedCounted, PeopleCounted, ClientResumed)

    def apply(self, change: RoomChange) -> None:
        """Apply a change."""
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
            case RoomTaken():
                self.settings = change.settings
                self.retained, self.retained_bytes = change.retained, change.retained_bytes
                self.users, self.connections = change.users, change.connections
                self.generation, self.resumed = change.generation, dict(change.resumed)

    def exists(self) -> bool:
        """Whether the room has state to store."""
        counts = (self.retained, self.users, self.connections, self.generation)
        return self.settings is not None or any(counts)

    def view(self) -> RoomSettings:
        """Return the effective settings."""
        return self.settings or DEFAULTS
