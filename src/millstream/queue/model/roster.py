"""The roster: of a queue with groups, which of them are in flight, and which have a record.

Most groups have nothing but messages that wait in their lane. Such a group has no record. It may be
claimed from unless the roster says that enough of it is in flight. Only a group with messages that
were passed over, or with a head, has a record (`group`). While they are few, the roster names them
all, so that a claim need not look for a record of each group that it meets.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from millstream.store.state.entity import Entity

NAMED_MAX = 1_000
"""Groups with a record that are named; of more, only their number is known."""


class Rostered(Struct, array_like=True, frozen=True):
    """Messages of groups went in flight or came back; groups got a record or lost it."""

    flew: list[str] = []
    """One name for each message."""
    landed: list[str] = []
    opened: list[str] = []
    closed: list[str] = []


class Roster(Entity, array_like=True):
    """The groups of one queue, as far as they are in use."""

    flying: dict[str, int] = field(default_factory=dict)
    """Groups and how many of their messages are in flight; those with none are left out."""
    count: int = 0
    """How many groups have a record."""
    named: dict[str, bool] = field(default_factory=dict)
    """These groups; empty if they are too many."""

    changes: ClassVar = Rostered
    computed: ClassVar = (Rostered,)
    weight: ClassVar[int] = 20

    def apply(self, change: Rostered) -> None:
        """Move to the next state."""
        flying = self.flying
        for name in change.flew:
            flying[name] = flying.get(name, 0) + 1
        for name in change.landed:
            left = flying.get(name, 0) - 1
            if left > 0:
                flying[name] = left
            else:
                flying.pop(name, None)
        if change.opened or change.closed:
            self._note(change)

    def _note(self, change: Rostered) -> None:
        names_all = self.names_all
        self.count += len(change.opened) - len(change.closed)
        if not names_all or self.count > NAMED_MAX:
            self.named.clear()
            return
        self.named.update(dict.fromkeys(change.opened, True))
        for name in change.closed:
            self.named.pop(name, None)

    @property
    def names_all(self) -> bool:
        """Whether every group with a record is named."""
        return len(self.named) == self.count

    def exists(self) -> bool:
        """Whether any group is in use."""
        return bool(self.flying or self.count)
