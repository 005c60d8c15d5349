"""The tempo of commits: whether they are so fast that an event loop can make them itself.

Handing a commit to a thread and its answer back costs two wake-ups, as much as a fast disk's sync.
On a slow disk the loop would stand still for as long as a sync takes. So the last commits are timed.
"""

from __future__ import annotations

from collections import deque

KEPT = 16
"""How many commits are remembered; before there are as many, nothing is known."""

FAST_S = 0.001
"""What at least half of them took at most."""

WORST_S = 0.010
"""What none of them took longer than: a loop that once stood still for so long does not soon again."""


class Tempo:
    """How long the last commits took."""

    __slots__ = ("_last_s", "is_fast")

    def __init__(self) -> None:
        self.is_fast = False
        """Whether the last commits were fast, and none of them slow."""
        self._last_s: deque[float] = deque(maxlen=KEPT)

    def note(self, commit_s: float) -> None:
        """A commit took so long."""
        last_s = self._last_s
        last_s.append(commit_s)
        if len(last_s) == KEPT:
            ordered = sorted(last_s)
            self.is_fast = ordered[KEPT // 2] <= FAST_S and ordered[-1] <= WORST_S
