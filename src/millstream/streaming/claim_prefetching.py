"""Prefetching from a queue: the messages are claimed, so they have leases and attempts.

Most messages are settled long before a renewal is due, so no lease is noted when it begins. Instead the
keeper looks at all held messages each quarter of a lease. Messages that it also saw at its last look
get into the table of leases (`worker/leases.py`), at an age below half of a lease, and are renewed.
A table with every lease cost 0.5 µs per message (2026-11).
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.errors import LeaseLost
from millstream.queue.model.message import Message
from millstream.streaming.prefetching import Prefetching, PrefetchPlan, Settle
from millstream.worker.effects import Idle, Renew
from millstream.worker.leases import Leases, claim_of
from millstream.worker.reason import reason_of

ENDED = "its consumer ended without an acknowledgement"


class ClaimPrefetching(Prefetching[Message]):
    """The claimed messages that a consumer holds."""

    def __init__(self, plan: PrefetchPlan, *, lease_s: float, attempts_max: int) -> None:
        super().__init__(plan)
        self._leases = Leases(lease_s)
        self._lease_s = lease_s
        self._attempts_max = attempts_max
        self._look_s: float | None = None
        """When to look at the held messages again; None if none was held at the last look."""
        self._seen: set[int] = set()
        """The held messages at the last look, by `id`. A new message at the place of an old one is
        renewed early, which is harmless."""
        self._renewable: dict[int, Message] = {}
        """The messages in the table of leases, by `id`."""

    def renewed(self, messages: Sequence[Message], *, since_s: float) -> None:
        """Note that leases were prolonged at `since_s` or later."""
        self._leases.renewed(messages, since_s=since_s)

    def refused(self, messages: Sequence[Message], error: Exception, *, now_s: float) -> None:
        """Note that leases could not be prolonged. A message without a lease is not yielded."""
        if not self._leases.refused(messages, error, now_s=now_s):
            self._break(error)
        elif isinstance(error, LeaseLost) and len(messages) == 1:
            self._forget_ready(messages[0])

    def _forget_ready(self, lost: Message) -> None:
        """Do not yield a message with a lost lease. A yielded message reports the loss when it ends."""
        if any(message is lost for message in list(self.ready)):
            del self._held[id(lost)]
            self.is_disturbed = True
            self._count_lost(1)

    def endings(self, error: BaseException | None) -> list[Settle[Message]]:
        """Remove the held messages, and return the steps that end their attempts.

        A message that the loop did not get is given back as if it had not been claimed. A message that
        the loop got and did not settle had an attempt: after an exception in the loop it is tried again
        after the backoff of the queue, else at once. Without an exception, no last attempt fails.
        """
        yielded, unseen = self.given_back()
        if isinstance(error, Exception) and error is not self.error:
            steps = [Settle(yielded, "nack", reason_of(error))]
        else:
            ended = [message for message in yielded if message.attempt < self._attempts_max]
            last = [message for message in yielded if message.attempt >= self._attempts_max]
            steps = [Settle(ended, "nack", ENDED, 0), Settle(last, "return")]
        return [step for step in (*steps, Settle(unseen, "return")) if step.messages]

    def _name_of(self, message: Message) -> object:
        return claim_of(message)

    def _next_renewal(self, now_s: float) -> Renew | Idle:
        if not self._held and not self._renewable:
            self._look_s = None
            self._seen.clear()
            return Idle()
        if self._look_s is None:
            self._look_s = now_s + self._lease_s / 4
        if now_s >= self._look_s:
            self._look_s = now_s + self._lease_s / 4
            self._look(now_s)
        if self._renewable:
            self._drop_settled()
        step = self._leases.next(now_s)
        if isinstance(step, Idle):
            return Idle(self._look_s if step.until_s is None else min(step.until_s, self._look_s))
        return step

    def _look(self, now_s: float) -> None:
        """Put messages into the table of leases that were held at the last look, too."""
        held = {id(message): message for message in list(self._held.values())}
        old = {
            key: message
            for key, message in held.items()
            if key in self._seen and key not in self._renewable
        }
        self._renewable |= old
        self._leases.hold(old.values(), since_s=now_s - self._lease_s / 2)
        self._seen = set(held)

    def _drop_settled(self) -> None:
        """Stop prolonging the leases of messages whose ending was sent."""
        waiting = {id(message) for message in list(self._acks)}
        waiting |= {id(message) for _, message in list(self._finishes)}
        settled = [
            message
            for key, message in self._renewable.items()
            if key not in self._held and key not in waiting
        ]
        self._leases.drop(settled)
        for message in settled:
            del self._renewable[id(message)]
