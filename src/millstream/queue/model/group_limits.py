"""The limits of single groups: exceptions to a queue's `group_in_flight` and `group_rate`."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from millstream.store.state.entity import Entity

GROUP_LIMITS_MAX = 10_000
"""The most groups of a queue with limits of their own: claims keep them in memory."""


class GroupLimit(Struct, array_like=True, frozen=True):
    """The limits of one group. None: the limit of the queue."""

    in_flight: int | None = None
    """The most messages of the group in flight; 0 is any number."""
    rate: float | None = None
    """Claims per second of the group; 0 is any number."""


class GroupLimited(Struct, array_like=True, frozen=True):
    """A group got limits of its own, or lost them."""

    name: str
    limit: GroupLimit | None


class GroupLimits(Entity, array_like=True):
    """The groups of one queue that have limits of their own."""

    limits: dict[str, GroupLimit] = field(default_factory=dict)

    changes: ClassVar = GroupLimited
    weight: ClassVar[int] = 20

    def apply(self, change: GroupLimited) -> None:
        """Move to the next state."""
        if change.limit is None:
            self.limits.pop(change.name, None)
        else:
            self.limits[change.name] = change.limit

    def exists(self) -> bool:
        """Whether any group has limits of its own."""
        return bool(self.limits)
