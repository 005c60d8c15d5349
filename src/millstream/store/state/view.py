"""Views of the stored rows: the overlay of unfolded rows over a snapshot.

`Rows` serves reads without a lock: a row that is missing in the overlay has moved to the engine. `View`
adds the entities, which are read under the mutex of the store: by an operation (`tx.view`), or by a
question (`store.view`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from millstream.engine.commit import Row
from millstream.engine.protocol import Snapshot
from millstream.store.state.entity import Entity
from millstream.store.state.overlay import Overlay, PendingRows
from millstream.store.state.state import State

E = TypeVar("E", bound=Entity)

KEYS_PER_STEP = 1_000


class Rows:
    """Rows by key, from the overlay and the snapshot."""

    __slots__ = ("overlay", "snapshot")

    def __init__(self, overlay: Overlay | PendingRows, snapshot: Snapshot) -> None:
        self.overlay = overlay
        self.snapshot = snapshot

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        value = self.overlay.get(key)
        return self.snapshot.get(key) if value is None else value

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Return up to `limit` small rows with start <= key < stop, in order."""
        values = dict(self.snapshot.scan(start, stop, limit=limit))
        for key in self.overlay.keys(start, stop)[:limit]:
            value = self.overlay.get(key)
            if value is not None:
                values[key] = value
        return sorted(values.items())[:limit]


class View(Rows):
    """Rows and entities."""

    __slots__ = ("state",)

    def __init__(
        self, state: State, snapshot: Snapshot, overlay: Overlay | PendingRows | None = None
    ) -> None:
        self.overlay = state.overlay if overlay is None else overlay
        self.snapshot = snapshot
        self.state = state

    def entity(self, key: bytes, kind: type[E]) -> E:
        """Return the entity of a key, to be read only."""
        entity = self.state.entity(key, self.snapshot)
        assert type(entity) is kind
        return entity

    def find(self, start: bytes, stop: bytes, *, limit: int) -> list[bytes]:
        """Return the keys of up to `limit` existing entities, in order."""
        return self.state.find(start, stop, self.snapshot, limit=limit)

    def find_all(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the keys of all existing entities of a range, in order, page by page."""
        while page := self.find(start, stop, limit=KEYS_PER_STEP):
            yield from page
            start = page[-1] + b"\x00"
