"""The unfolded entities: entities with changes in deltas that are not in their records yet.

A slice of the fold asks for the oldest unfolded entities. The index by first delta makes the cost depend
on the slice, not on the tail: a queue with many groups leaves tens of thousands of unfolded entities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class Unfolded(dict[bytes, list[int]]):
    """Keys of entities, each with its first and last unfolded delta.

    A dictionary itself, because every commit asks for the number of entities.
    """

    __slots__ = ("_by_first", "_folded")

    def __init__(self) -> None:
        super().__init__()
        self._by_first: dict[int, list[bytes]] = {}
        """The first unfolded delta → keys of entities; keys without a span are out of date."""
        self._folded = 0

    def last(self, key: bytes) -> int:
        """Return the last delta that changed an unfolded entity."""
        return self[key][1]

    def oldest(self, through: int) -> Iterator[tuple[int, bytes]]:
        """Yield the entities that deltas up to `through` changed, in the order of their first delta."""
        for seq in range(self._folded + 1, through + 1):
            for key in self._by_first.get(seq, ()):
                span = self.get(key)
                if span is not None and span[0] == seq:
                    yield seq, key

    def note(self, seq: int, changes: Iterable[tuple[bytes, Any]]) -> None:
        """Note the changes of the newest delta."""
        new = []
        for key, _ in changes:
            span = self.get(key)
            if span is None:
                self[key] = [seq, seq]
                new.append(key)
            else:
                span[1] = seq
        if new:
            self._by_first[seq] = new

    def written(self, key: bytes) -> bool:
        """Note that the record of an entity is up to date; return False if this was known."""
        return self.pop(key, None) is not None

    def folded_through(self, seq: int) -> list[bytes]:
        """Note that all deltas up to `seq` are folded; return the entities without a later change."""
        later: list[bytes] = []
        clean: list[bytes] = []
        for _, key in self.oldest(seq):
            span = self[key]
            if span[1] <= seq:
                del self[key]
                clean.append(key)
            else:
                span[0] = seq + 1
                later.append(key)
        for first in range(self._folded + 1, seq + 1):
            self._by_first.pop(first, None)
        if later:
            self._by_first[seq + 1] = later + self._by_first.get(seq + 1, [])
        self._folded = seq
        return clean

    def restart(self, folded: int) -> None:
        """Forget all entities; the next deltas are those after `folded`."""
        self.clear()
        self._by_first.clear()
        self._folded = folded
