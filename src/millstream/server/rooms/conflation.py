"""Conflation: keeps the latest message of each type and sender until the next tick; pure.

A message replaces an earlier message of the same type and sender. The messages leave in the order
in which the latest of each arrived. The first message after a quiet period leaves at once, the next
after a full tick.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Conflation(Generic[T]):
    """The latest message of each type and sender in the current tick."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], T] = {}
        self._taken_s: float | None = None

    def __len__(self) -> int:
        return len(self._latest)

    def put(self, kind: str, sender: str, message: T) -> T | None:
        """Add a message; return the replaced message, or None."""
        replaced = self._latest.pop((kind, sender), None)
        self._latest[kind, sender] = message
        return replaced

    def due_s(self, now_s: float, tick_s: float) -> float:
        """Return the seconds from now until the messages may leave."""
        if self._taken_s is None:
            return 0.0
        return max(0.0, self._taken_s + tick_s - now_s)

    def take(self, now_s: float) -> list[T]:
        """Return and remove all messages; the next tick starts now."""
        messages = [*self._latest.values()]
        self._latest = {}
        self._taken_s = now_s
        return messages
