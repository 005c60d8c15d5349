"""Caches: data that parts above the store remember for speed, and may lose at any time."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class Caches:
    """A cache for each class, made at the first use; for any thread."""

    def __init__(self) -> None:
        self._caches: dict[type, Any] = {}

    def of(self, kind: type[T], *arguments: Any) -> T:
        """Return the cache of a class; the first call makes it with the arguments."""
        cache: T
        try:
            cache = self._caches[kind]
        except KeyError:
            cache = self._caches.setdefault(kind, kind(*arguments))
        return cache

    def clear(self) -> None:
        """Drop all caches."""
        self._caches.clear()
