"""Which entities have changes that no record holds yet, found by their first such delta.

A slice of the fold asks for the oldest of them. That costs what the slice takes, not what the whole
tail holds: a queue with many groups leaves tens of thousands of entities unfolded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class Unfolded:
    """Keys of entities, each with the first and the last delta whose change no record holds."""

    __slots__ = ("_by_first", "_folded", "_spans")

    def __init__(self) -> None:
        self._spans: dict[bytes, list[int]] = {}
        self._by_first: dict[int, list[bytes]] = {}
        """A delta → the entities that it changed first; those that were written since count no more."""
        self._folded = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def last(self, key: bytes) -> int:
        """The last delta that changed one of them."""
        return self._spans[key][1]

    def oldest(self, through: int) -> Iterator[tuple[int, bytes]]:
        """Those that deltas up to `through` changed, with the first such delta, in its order."""
        spans = self._spans
        for seq in range(self._folded + 1, through + 1):
            for key in self._by_first.get(seq, ()):
                span = spans.get(key)
                if span is not None and span[0] == seq:
                    yield seq, key

    def note(self, seq: int, changes: Iterable[tuple[bytes, Any]]) -> None:
        """The newest delta has changed entities."""
        spans = self._spans
        new = []
        for key, _ in changes:
            span = spans.get(key)
            if span is None:
                spans[key] = [seq, seq]
                new.append(key)
            else:
                span[1] = seq
        if new:
            self._by_first[seq] = new

    def written(self, key: bytes) -> None:
        """The record of an entity holds everything."""
        self._spans.pop(key, None)

    def folded_through(self, seq: int) -> list[bytes]:
        """Records hold every change up to the delta `seq`; the entities with no later change."""
        spans, later = self._spans, []
        clean: list[bytes] = []
        for _, key in self.oldest(seq):
            span = spans[key]
            if span[1] <= seq:
                del spans[key]
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

    def clear(self, folded: int) -> None:
        """Forget all: what comes next are the deltas after `folded`."""
        self._spans.clear()
        self._by_first.clear()
        self._folded = folded
