"""What is stored, as one reader sees it: rows that are not folded yet, over a snapshot.

`Rows` is for reads without a lock: what they miss in one place has moved to the other. `View` adds the
entities, which are only looked at under the store's mutex: by an operation (`tx.view`), or by a
question (`store.view`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from millstream.engine.commit import Row
from millstream.engine.protocol import Snapshot
from millstream.store.state.entity import Entity
from millstream.store.state.overlay import Overlay
from millstream.store.state.state import State

E = TypeVar("E", bound=Entity)

KEYS_PER_STEP = 1_000


class Rows:
    """Rows by key, wherever they lie."""

    __slots__ = ("overlay", "snapshot")

    def __init__(self, overlay: Overlay, snapshot: Snapshot) -> None:
        self.overlay = overlay
        self.snapshot = snapshot

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        found = self.overlay.get(key)
        return self.snapshot.get(key) if found is None else found

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Up to `limit` small rows with start <= key < stop, in order."""
        found = dict(self.snapshot.scan(start, stop, limit=limit))
        for key in self.overlay.keys(start, stop)[:limit]:
            held = self.overlay.get(key)
            if held is not None:
                found[key] = held
        return sorted(found.items())[:limit]


class View(Rows):
    """Rows, and the entities over them."""

    __slots__ = ("state",)

    def __init__(self, state: State, snapshot: Snapshot) -> None:
        self.overlay = state.overlay
        self.snapshot = snapshot
        self.state = state

    def entity(self, key: bytes, kind: type[E]) -> E:
        """The entity of a key, to look at; loaded if need be."""
        found = self.state.entity(key, self.snapshot)
        assert type(found) is kind
        return found

    def find(self, start: bytes, stop: bytes, *, limit: int) -> list[bytes]:
        """The keys of up to `limit` entities that exist, in order."""
        return self.state.find(start, stop, self.snapshot, limit=limit)

    def find_all(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """The keys of all entities of a range that exist, in order, looked up some at a time."""
        while page := self.find(start, stop, limit=KEYS_PER_STEP):
            yield from page
            start = page[-1] + b"\x00"
