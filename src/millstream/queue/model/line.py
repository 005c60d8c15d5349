"""The line of one queue: the claims that wait for messages, in order of arrival.

Only the first waiter watches the queue, so a change costs one look at the queue for any number of
waiters. After a change the first waiter looks. If it gets messages and more remain, the line sends
as many further waiters to take them. If it gets nothing, the remaining waiters sleep on. When no
waiter looks any more, the first one watches again, and a watch begins with a glance at the queue:
so the line misses no change, whichever waiters leave and whenever.

The line is a pure state machine: its methods take events and return duties for waiters. It has no
lock, no thread and no clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Literal, TypeVar

W = TypeVar("W", bound=Hashable)

Duty = Literal["watch", "look", "take"]
"""The duty of a waiter.

`watch`: glance at the queue, then report changes and the next due time. `look`: try a claim.
`take`: try a claim that is likely to succeed, because enough messages remained for this waiter.
"""


class Line(Generic[W]):
    """The waiters of one queue. Invariant: the first one watches, or at least one looks."""

    __slots__ = ("_leaving", "_looking", "_requested", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[W, int] = {}
        """Every waiter in line, with the number of messages it requests."""
        self._looking: set[W] = set()
        self._leaving: set[W] = set()
        """Looking waiters that leave the line if their claim finds nothing."""
        self._requested = 0
        """The number of messages that the looking waiters request."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, waiter: W | None) -> bool:
        return waiter in self._waiting

    def watches(self, waiter: W) -> bool:
        """Return whether this waiter keeps watch."""
        return not self._looking and next(iter(self._waiting), None) is waiter

    def looks(self, waiter: W) -> bool:
        """Return whether this waiter looks, or was sent to look."""
        return waiter in self._looking

    def join(self, waiter: W, count: int) -> list[tuple[W, Duty]]:
        """Add a waiter whose claim found no message."""
        self._waiting[waiter] = count
        return [(waiter, "watch")] if len(self._waiting) == 1 else []

    def change(self) -> list[tuple[W, Duty]]:
        """Report that a message may be claimable. Has no effect while any waiter looks."""
        if self._looking or not self._waiting:
            return []
        first = next(iter(self._waiting))
        self._look(first)
        return [(first, "look")]

    def served(self, waiter: W, remaining: int = 0) -> list[tuple[W, Duty]]:
        """Remove a waiter that got messages or an error; `remaining` messages stay claimable."""
        self._looked(waiter)
        self._remove(waiter)
        return [*self._take(remaining - self._requested), *self._watch()]

    def in_vain(self, waiter: W) -> list[tuple[W, Duty]]:
        """Report that a waiter looked and got nothing. It stays in line unless it asked to leave."""
        self._looked(waiter)
        if waiter in self._leaving:
            self._remove(waiter)
        return self._watch()

    def leave(self, waiter: W) -> list[tuple[W, Duty]]:
        """Remove a waiter that gives up. A looking waiter leaves after its look."""
        if waiter in self._looking:
            self._leaving.add(waiter)
            return []
        did_watch = self.watches(waiter)
        self._remove(waiter)
        return self._watch() if did_watch else []

    def _look(self, waiter: W) -> None:
        self._looking.add(waiter)
        self._requested += self._waiting[waiter]

    def _looked(self, waiter: W) -> None:
        if waiter in self._looking:
            self._looking.remove(waiter)
            self._requested -= self._waiting[waiter]

    def _remove(self, waiter: W) -> None:
        self._waiting.pop(waiter, None)
        self._leaving.discard(waiter)

    def _take(self, remaining: int) -> list[tuple[W, Duty]]:
        """Send sleeping waiters to take the remaining messages, each as many as it requests."""
        if remaining <= 0 or len(self._looking) == len(self._waiting):
            return []
        taking: list[W] = []
        for waiter, count in self._waiting.items():
            if waiter not in self._looking:
                taking.append(waiter)
                remaining -= count
                if remaining <= 0:
                    break
        for waiter in taking:
            self._look(waiter)
        return [(waiter, "take") for waiter in taking]

    def _watch(self) -> list[tuple[W, Duty]]:
        """Return the watch for the first waiter, if no waiter looks."""
        if self._looking or not self._waiting:
            return []
        return [(next(iter(self._waiting)), "watch")]
