"""Conflation: of messages that replace each other, only the latest of a tick is kept; pure.

Messages replace each other if they are of the same type and come from the same sender. They leave
in the order in which the kept ones came. The first message after a quiet time leaves at once; the
next one not before a tick has passed.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Conflation(Generic[T]):
    """The latest messages of the tick that runs."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], T] = {}
        self._taken_s: float | None = None

    def __len__(self) -> int:
        return len(self._latest)

    def put(self, kind: str, sender: str, message: T) -> T | None:
        """Keep a message; answers the one that it replaces, if there is one."""
        replaced = self._latest.pop((kind, sender), None)
        self._latest[kind, sender] = message
        return replaced

    def due_s(self, now_s: float, tick_s: float) -> float:
        """How long what is kept waits from now on."""
        if self._taken_s is None:
            return 0.0
        return max(0.0, self._taken_s + tick_s - now_s)

    def take(self, now_s: float) -> list[T]:
        """Everything that is kept; the next tick begins."""
        found = [*self._latest.values()]
        self._latest = {}
        self._taken_s = now_s
        return found
