"""What readers see: the durable state while operations already change the next one.

A view is a frozen value of an entity, which readers use without a lock. It is replaced after the commit
that changed its entity is durable.

Operations change entities in place. `PublishedEntities` keeps the durable version of every entity that
they change, for readers beside a commit in flight and to undo a failed operation. A version is copied once
and then follows its entity: it applies the same changes when a reader asks for it. Writers without such
readers pay one copy per `CHANGES_MAX` changes. A copy per commit was rejected: the copy of a queue's bucket
with 10,000 messages took 11 to 270 µs, beside 110 µs for a whole claim.
"""

from __future__ import annotations

from typing import Any

from millstream.store.state.entity import Entity, Kinds

CHANGES_MAX = 1_000
"""After so many changes that nobody asked for, the versions are dropped instead of updated."""


class Views(dict[bytes, Any]):
    """Views by the key of their entity; readers ask the state for a missing view.

    A dictionary itself, because every read asks for a view.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seq = -1
        """The sequence of the newest visible commit; `clear` keeps it."""


class PublishedEntities(dict[bytes, Entity]):
    """Durable versions of the entities that operations have changed lately.

    An operation adds the version of an entity before its first change. Between two commits the state
    equals its versions, and may drop all of them.
    """

    def __init__(self, kinds: Kinds) -> None:
        super().__init__()
        self._kinds = kinds
        self.missing: list[tuple[bytes, Any]] = []
        """Durable changes that the versions lack; the state adds them, up to `CHANGES_MAX`."""

    def catch_up(self) -> None:
        """Apply the durable changes that the versions lack."""
        for key, change in self.missing:
            if change is not None:
                self[key].apply(change)
            else:
                self[key] = self._kinds[key[1]].gone(self[key].lsn)
        self.missing = []

    def clear(self) -> None:
        """Drop all versions."""
        super().clear()
        self.missing = []
