"""Reordering: yields the records of a log in offset order, from fetches and offers.

A process learns of records by fetching them, and by committing them itself (`offer`). Fetches and
offers overlap, and an offer may be ahead of a fetch. The output continues where the last piece
ended: every record once, in order. Pure: no loop, no store.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

HELD_MAX = 10_000
"""The most early records to hold; further records are fetched later."""


class InOrder(Generic[T]):
    """The next expected offset, and pieces that arrived early."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        """The first offset that was not output."""
        self._held: list[tuple[int, int, Sequence[T]]] = []
        self._held_count = 0
        self._numbers = count()

    @property
    def has_hole(self) -> bool:
        """Return whether a held piece waits for earlier records."""
        return bool(self._held)

    def take(self, first: int, piece: Sequence[T]) -> list[T]:
        """Take the items from offset `first` on; return the items that are next in order."""
        if first > self.position:
            self._hold(first, piece)
            return []
        ready = [*piece[self.position - first :]]
        self.position += len(ready)
        return ready + self._follow()

    def skip(self, position: int) -> list[T]:
        """Give up the items before a position; return the held items from the position on."""
        self.position = max(self.position, position)
        return self._follow()

    def restart(self, position: int) -> None:
        """Start again at a position, and drop held items."""
        self.position = position
        self._held, self._held_count = [], 0

    def _hold(self, first: int, piece: Sequence[T]) -> None:
        if self._held_count + len(piece) <= HELD_MAX:
            heappush(self._held, (first, next(self._numbers), piece))
            self._held_count += len(piece)

    def _follow(self) -> list[T]:
        """Return held items that are next in order."""
        ready: list[T] = []
        while self._held and self._held[0][0] <= self.position:
            first, _, piece = heappop(self._held)
            self._held_count -= len(piece)
            unseen = piece[self.position - first :]
            ready += unseen
            self.position += len(unseen)
        return ready
