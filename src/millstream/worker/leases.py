"""Leases in the hands of a worker, and when each is to be prolonged: a table without I/O.

A shell asks `next` beside its other work, so that what is held stays held, however long its handler
takes and whatever the worker itself waits for. A lease that was lost all the same is let go: the
acknowledgement will tell.

1. A lease is due at half its time. Others that are due within a quarter of it go along.
2. If one of several was lost, each is prolonged by itself, and the lost ones are let go.
3. After a failure that may pass, the same is tried again a little later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from millstream.errors import LeaseLost
from millstream.queue.model.message import Message
from millstream.worker.effects import Idle, Renew
from millstream.worker.endurance import may_pass

EARLY = 0.25
"""The share of a lease by which one may be prolonged early, together with others."""
AGAIN_S = 0.05
"""After a failure that may pass."""

ClaimKey = tuple[int, int]


def claim_of(message: Message) -> ClaimKey:
    """What identifies a claim: its id and its attempt."""
    return message.claim_id, message.attempt


class Leases:
    """The leases that one worker holds."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._held: dict[ClaimKey, tuple[Message, float]] = {}
        self._alone: deque[Message] = deque()
        self._again_s = 0.0

    def hold(self, messages: Iterable[Message], *, since_s: float) -> None:
        """Prolong the leases of messages that were claimed at, or after, some time."""
        due_s = since_s + self._lease_s / 2
        for message in messages:
            self._held[claim_of(message)] = (message, due_s)

    def drop(self, messages: Iterable[Message]) -> None:
        """Let messages go."""
        for message in messages:
            self._held.pop(claim_of(message), None)

    def next(self, now_s: float) -> Renew | Idle:
        """What to prolong now; or until when nothing is due, without a time if nothing is held."""
        if now_s < self._again_s:
            return Idle(self._again_s)
        while self._alone:
            message = self._alone.popleft()
            if claim_of(message) in self._held:
                return Renew([message])
        first_s = min((due_s for _, due_s in self._held.values()), default=None)
        if first_s is None or first_s > now_s:
            return Idle(first_s)
        soon_s = now_s + self._lease_s * EARLY
        due = [message for message, due_s in self._held.values() if due_s <= soon_s]
        return Renew(sorted(due, key=claim_of))

    def renewed(self, messages: Iterable[Message], *, since_s: float) -> None:
        """Leases were prolonged at, or after, some time."""
        self.hold((m for m in messages if claim_of(m) in self._held), since_s=since_s)

    def refused(self, messages: Sequence[Message], error: Exception, *, now_s: float) -> bool:
        """Leases could not be prolonged; False if the error is one that does not pass."""
        if isinstance(error, LeaseLost):
            if len(messages) == 1:
                self.drop(messages)
            else:
                self._alone.extend(messages)
            return True
        self._again_s = now_s + AGAIN_S
        return may_pass(error)
