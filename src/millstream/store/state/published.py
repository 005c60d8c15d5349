"""Views: frozen values of entities, which readers use without a lock.

A view is replaced after the commit that changed its entity is durable. Two states publish views: the
state of the store and that of the read copy. The state that is behind changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from millstream.store.state.entity import Entity


class Views:
    """Views by the key of their entity; readers ask a state for a missing view."""

    def __init__(self) -> None:
        self.seq = -1
        """The sequence of the newest visible commit."""
        self._views: dict[bytes, Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._views)

    def get(self, key: bytes) -> Any:
        """Return the view of an entity, or None."""
        return self._views.get(key)

    def replace(self, changed: Iterable[bytes], entities: dict[bytes, Entity], seq: int) -> None:
        """Replace the views of changed entities, as of the commit `seq`."""
        with self._lock:
            if seq >= self.seq:
                for key in changed:
                    entity = entities.get(key)
                    if entity is not None and (view := entity.view()) is not None:
                        self._views[key] = view
                self.seq = seq

    def add(self, key: bytes, view: Any, *, seq: int) -> None:
        """Add the view of an entity as of the commit `seq`, unless a newer commit is visible."""
        with self._lock:
            if seq >= self.seq:
                self._views[key] = view

    def remove(self, key: bytes) -> None:
        """Remove the view of an entity."""
        self._views.pop(key, None)

    def clear(self) -> None:
        """Remove all views, and keep the sequence of the visible commit."""
        with self._lock:
            self._views.clear()
