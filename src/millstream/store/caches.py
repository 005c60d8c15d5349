"""Caches: what parts above the store remember of it to be faster. Anything may be forgotten."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class Caches:
    """One cache of each kind, made when it is first asked for; for use by any thread."""

    def __init__(self) -> None:
        self._found: dict[type, Any] = {}

    def of(self, kind: type[T], *arguments: Any) -> T:
        """The cache of a kind: a class, and what it is made with."""
        found: T
        try:
            found = self._found[kind]
        except KeyError:
            found = self._found.setdefault(kind, kind(*arguments))
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._found.clear()
