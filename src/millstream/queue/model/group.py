"""A group: messages of a queue with the same group name.

A claimable group has a group head: the only message of the group in the index of claimable
messages, or in the index of due times. The remaining messages wait behind the head in claim number
order. So a claim checks a single message per group, however many wait. A group whose messages all
wait in a lane has no head and no record; the queue's roster counts its messages in flight.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from millstream.queue.model.rates import NEVER_MS
from millstream.store.state.entity import Entity

NOBODY = -1


class GroupStanding(Struct, array_like=True, frozen=True):
    """The state of a group; as a change, the new state of the group."""

    waiting: int = 0
    """The number of messages behind the head."""
    head: int = NOBODY
    """The claim id of the head."""
    rank: tuple[int, int] | None = None
    """The position of the head in the index; None while the head waits until it is due."""
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
        """Return whether the group has any state to store."""
        return self.standing != NO_STANDING
