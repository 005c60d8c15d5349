"""The leases of a worker, and when to prolong each: a table without I/O.

The worker's shell calls `next` beside its other work, so that leases hold, however long a handler
takes and whatever the worker waits for. A lease that was lost nevertheless is dropped: the
acknowledgement will report it.

1. A lease is due after half its time. Leases that are due within a quarter of it go along.
2. If one of several leases was lost, each is prolonged separately, and lost leases are dropped.
3. After a failure that may pass, the renewal is tried again a little later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from millstream.errors import LeaseLost
from millstream.queue.model.message import Message
from millstream.worker.effects import Idle, Renew
from millstream.worker.endurance import may_pass

EARLY = 0.25
"""The share of a lease by which it may be prolonged early, together with other leases."""
AGAIN_S = 0.05
"""The pause after a failure that may pass."""


def claim_of(message: Message) -> tuple[int, int]:
    """Return the name of a claim: the claim id and the attempt; messages are sorted by it.

    Tables of a worker have `id(message)` as their key, because the object of a claimed message stays
    the same until its end: a name is a new tuple each time, and took 1 µs of every 8 (2026-11).
    """
    return message.claim_id, message.attempt


class Leases:
    """The leases of a worker."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._held: dict[int, tuple[Message, float]] = {}
        self._alone: deque[Message] = deque()
        self._again_s = 0.0

    def hold(self, messages: Iterable[Message], *, since_s: float) -> None:
        """Prolong the leases of messages that were claimed at `since_s` or later."""
        due_s = since_s + self._lease_s / 2
        self._held.update({id(message): (message, due_s) for message in messages})

    def drop(self, messages: Iterable[Message]) -> None:
        """Stop prolonging the leases of messages."""
        for message in messages:
            self._held.pop(id(message), None)

    def next(self, now_s: float) -> Renew | Idle:
        """Return the leases to prolong now, or until when nothing is due; without leases, no time."""
        if now_s < self._again_s:
            return Idle(self._again_s)
        while self._alone:
            message = self._alone.popleft()
            if id(message) in self._held:
                return Renew([message])
        first_s = min((due_s for _, due_s in self._held.values()), default=None)
        if first_s is None or first_s > now_s:
            return Idle(first_s)
        soon_s = now_s + self._lease_s * EARLY
        due = [message for message, due_s in self._held.values() if due_s <= soon_s]
        return Renew(sorted(due, key=claim_of))

    def renewed(self, messages: Iterable[Message], *, since_s: float) -> None:
        """Note that leases were prolonged at `since_s` or later."""
        self.hold([m for m in messages if id(m) in self._held], since_s=since_s)

    def refused(self, messages: Sequence[Message], error: Exception, *, now_s: float) -> bool:
        """Note that leases could not be prolonged; False if the error does not pass."""
        if isinstance(error, LeaseLost):
            if len(messages) == 1:
                self.drop(messages)
            else:
                self._alone.extend(messages)
            return True
        self._again_s = now_s + AGAIN_S
        return may_pass(error)
