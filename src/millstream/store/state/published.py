"""Views: what readers see of entities without a lock, as frozen values.

A view is replaced only after the commit that changed its entity is durable. Two states publish
here, the store's own and the standby's; the one that is behind the other changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from millstream.store.state.entity import Entity


class Views:
    """Views by the key of their entity; one that is missing has to be asked of a state."""

    def __init__(self) -> None:
        self.seq = -1
        """The newest commit whose views readers see."""
        self._found: dict[bytes, Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: bytes) -> Any:
        """The view of an entity, or None."""
        return self._found.get(key)

    def replace(self, changed: Iterable[bytes], entities: dict[bytes, Entity], seq: int) -> None:
        """Show what has changed of a state's entities, up to its commit `seq`."""
        with self._lock:
            if seq >= self.seq:
                for key in changed:
                    entity = entities.get(key)
                    if entity is not None and (view := entity.view()) is not None:
                        self._found[key] = view
                self.seq = seq

    def add(self, key: bytes, view: Any, *, seq: int) -> None:
        """Remember the view of an entity as of the commit `seq`, unless there is a newer commit."""
        with self._lock:
            if seq >= self.seq:
                self._found[key] = view

    def remove(self, key: bytes) -> None:
        """Forget one."""
        self._found.pop(key, None)

    def clear(self) -> None:
        """Forget all; the commit that readers have seen stays."""
        with self._lock:
            self._found.clear()
