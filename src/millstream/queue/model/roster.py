"""The roster of a queue with groups: the groups in flight, and the groups with a record.

Most groups only have messages that wait in their lane. A group of this kind has no record, and a
consumer may claim from it unless the roster counts enough of its messages in flight. A group has a
record (`group`) if messages of the group were passed over, or if it has a head. While few groups
have a record, the roster names all of them, so that a claim need not search for a record of every
group it meets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct, field

from millstream.store.state.entity import Entity

NAMED_MAX = 1_000
"""The most groups with a record that the roster names. Beyond the limit the roster only counts groups."""


class Rostered(Struct, array_like=True, frozen=True):
    """Messages of groups went in flight or came back; groups got a record or lost it."""

    flew: list[str] = []
    """The group of each message; a name repeats if several messages of a group went in flight."""
    landed: list[str] = []
    opened: list[str] = []
    closed: list[str] = []


def movements(flown: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return the group of each message that went in flight, and of each that came back."""
    flew: list[str] = []
    landed: list[str] = []
    for name, by in flown.items():
        if by > 0:
            flew += [name] * by
        elif by < 0:
            landed += [name] * -by
    return flew, landed


class Roster(Entity, array_like=True):
    """The groups in use of one queue."""

    flying: dict[str, int] = field(default_factory=dict)
    """Groups with messages in flight → the number of these messages."""
    count: int = 0
    """The number of groups with a record."""
    named: dict[str, bool] = field(default_factory=dict)
    """The names of groups with a record; empty if there are too many."""

    changes: ClassVar = Rostered
    computed: ClassVar = (Rostered,)
    weight: ClassVar[int] = 20

    def apply(self, change: Rostered) -> None:
        """Move to the next state."""
        flying = self.flying
        for name, count in Counter(change.flew).items():
            flying[name] = flying.get(name, 0) + count
        for name, count in Counter(change.landed).items():
            remaining = flying.get(name, 0) - count
            if remaining > 0:
                flying[name] = remaining
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
