"""Records of one log put into the order of their offsets, whichever way they came.

A process learns of records by fetching them, and by committing them itself (`offer`). The two
overlap, and an offer may be ahead of a fetch. What comes out begins where the last piece ended:
every record once, none out of turn. Pure: no loop, no store.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

HELD_MAX = 10_000
"""Records ahead of their turn that are held; further ones are fetched when it is their turn."""


class InOrder(Generic[T]):
    """The next offset that is wanted, and pieces that came too early."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        """The first offset that has not come out."""
        self._held: list[tuple[int, int, Sequence[T]]] = []
        self._held_count = 0
        self._numbers = count()

    @property
    def has_hole(self) -> bool:
        """Whether something waits for records before it."""
        return bool(self._held)

    def take(self, first: int, piece: Sequence[T]) -> list[T]:
        """Take the items from offset `first` on; answers those whose turn has come."""
        if first > self.position:
            self._hold(first, piece)
            return []
        ready = [*piece[self.position - first :]]
        self.position += len(ready)
        return ready + self._follow()

    def skip(self, position: int) -> list[T]:
        """Give up what lies before a position; answers what was held for it to come."""
        self.position = max(self.position, position)
        return self._follow()

    def restart(self, position: int) -> None:
        """Begin anew at a position: what is held belongs to what was there before."""
        self.position = position
        self._held, self._held_count = [], 0

    def _hold(self, first: int, piece: Sequence[T]) -> None:
        if self._held_count + len(piece) <= HELD_MAX:
            heappush(self._held, (first, next(self._numbers), piece))
            self._held_count += len(piece)

    def _follow(self) -> list[T]:
        """What was held, as far as nothing is missing before it."""
        ready: list[T] = []
        while self._held and self._held[0][0] <= self.position:
            first, _, piece = heappop(self._held)
            self._held_count -= len(piece)
            rest = piece[self.position - first :]
            ready += rest
            self.position += len(rest)
        return ready
