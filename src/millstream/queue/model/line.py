"""The line of one queue: the claims that wait for it, in the order in which they came.

Only the first keeps watch, so a change costs one look at the queue, whatever number of claims
waits. When there may be something, the first looks. If it gets messages and more are left, as many
others take some at once; if it gets none, the rest sleep on. Once nobody looks any more, the claim
that is first then keeps watch, and that begins with a glance whether something came meanwhile: so
no change is missed, whichever claims leave and whenever.

It takes what happened, and answers which waiters are to do what: no lock, no thread, no clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Literal, TypeVar

W = TypeVar("W", bound=Hashable)

Duty = Literal["watch", "look", "take"]
"""What a waiter is told to do.

`watch`: glance at the queue, then report its changes, and when time alone may bring a message.
`look`: claim what there is. `take`: the same, and it is known that there was enough for it.
"""


class Line(Generic[W]):
    """The waiters of one queue: either the first keeps watch, or at least one looks."""

    __slots__ = ("_asked", "_leaving", "_looking", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[W, int] = {}
        """All in line, with the number of messages that each wants."""
        self._looking: set[W] = set()
        self._leaving: set[W] = set()
        """Looking waiters that leave if they get nothing."""
        self._asked = 0
        """How many messages the looking waiters want."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, waiter: W | None) -> bool:
        return waiter in self._waiting

    def watches(self, waiter: W) -> bool:
        """Whether it is the one that keeps watch."""
        return not self._looking and next(iter(self._waiting), None) is waiter

    def looks(self, waiter: W) -> bool:
        """Whether it is looking, or told to."""
        return waiter in self._looking

    def join(self, waiter: W, wanted: int) -> list[tuple[W, Duty]]:
        """A claim of at least one message has found nothing, and waits."""
        self._waiting[waiter] = wanted
        return [(waiter, "watch")] if len(self._waiting) == 1 else []

    def change(self) -> list[tuple[W, Duty]]:
        """There may be something to claim. While claims look, nothing follows from it."""
        if self._looking or not self._waiting:
            return []
        first = next(iter(self._waiting))
        self._look(first)
        return [(first, "look")]

    def served(self, waiter: W, left: int = 0) -> list[tuple[W, Duty]]:
        """A waiter got messages, or an error, and goes; so many messages were left behind."""
        self._looked(waiter)
        self._remove(waiter)
        return [*self._take(left - self._asked), *self._watch()]

    def in_vain(self, waiter: W) -> list[tuple[W, Duty]]:
        """A waiter has looked and got nothing: it keeps its place, unless its time was up."""
        self._looked(waiter)
        if waiter in self._leaving:
            self._remove(waiter)
        return self._watch()

    def leave(self, waiter: W) -> list[tuple[W, Duty]]:
        """A waiter wants to wait no longer; one that looks stays until that is over."""
        if waiter in self._looking:
            self._leaving.add(waiter)
            return []
        did_watch = self.watches(waiter)
        self._remove(waiter)
        return self._watch() if did_watch else []

    def _look(self, waiter: W) -> None:
        self._looking.add(waiter)
        self._asked += self._waiting[waiter]

    def _looked(self, waiter: W) -> None:
        if waiter in self._looking:
            self._looking.remove(waiter)
            self._asked -= self._waiting[waiter]

    def _remove(self, waiter: W) -> None:
        self._waiting.pop(waiter, None)
        self._leaving.discard(waiter)

    def _take(self, left: int) -> list[tuple[W, Duty]]:
        """Let sleeping waiters have what is left, each as much as it wants."""
        if left <= 0 or len(self._looking) == len(self._waiting):
            return []
        taking: list[W] = []
        for waiter, wanted in self._waiting.items():
            if waiter not in self._looking:
                taking.append(waiter)
                left -= wanted
                if left <= 0:
                    break
        for waiter in taking:
            self._look(waiter)
        return [(waiter, "take") for waiter in taking]

    def _watch(self) -> list[tuple[W, Duty]]:
        """If nobody looks any more, the first keeps watch."""
        if self._looking or not self._waiting:
            return []
        return [(next(iter(self._waiting)), "watch")]
