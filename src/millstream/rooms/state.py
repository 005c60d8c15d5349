"""What the store keeps of a room besides its log: settings, and counts of what belongs to it."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from millstream.rooms.settings import DEFAULTS, RoomSettings
from millstream.store.entity import Entity


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


class RoomState(Entity, array_like=True):
    """One room. One of which nothing was said has the defaults, and no record."""

    settings: RoomSettings | None = None
    retained: int = 0
    retained_bytes: int = 0
    users: int = 0
    connections: int = 0
    """Of these users; those that have ended do not count."""

    changes: ClassVar = RoomSpecified | RetainedCounted | PeopleCounted
    computed: ClassVar = (RetainedCounted, PeopleCounted)

    def apply(self, change: RoomSpecified | RetainedCounted | PeopleCounted) -> None:
        """Move to the next state."""
        match change:
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
        return self.settings is not None or bool(self.retained or self.users or self.connections)

    def view(self) -> RoomSettings:
        """The settings that hold now."""
        return self.settings or DEFAULTS
