"""A group: messages that belong together, in one queue.

Of a group that may be claimed from, one message is the group head: it stands in the index of what is
ready, or waits for its time. The others wait behind it, in the order of their claim numbers. So a
claim looks at one message per group, however many wait. A group whose messages all wait in a lane
has no head, and no record; how many of its messages are in flight is in the queue's roster.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from millstream.queue.model.pace import NEVER_MS
from millstream.store.state.entity import Entity

NOBODY = -1


class GroupStanding(Struct, array_like=True, frozen=True):
    """How a group stands; as a change, how it stands from now on."""

    waiting: int = 0
    """Behind the head."""
    head: int = NOBODY
    """A claim id."""
    rank: tuple[int, int] | None = None
    """Where the head stands in the index; None while it waits for its time."""
    paid_until_ms: float = NEVER_MS


NO_STANDING = GroupStanding()


class Group(Entity, array_like=True):
    """One group of a queue."""

    standing: GroupStanding = NO_STANDING

    changes: ClassVar = GroupStanding

    def apply(self, change: GroupStanding) -> None:
        """Move to the next state."""
        self.standing = change

    def exists(self) -> bool:
        """Whether anything is known of it."""
        return self.standing != NO_STANDING
