"""Leases in the hands of a worker: prolonged at half their time, on a thread of their own.

What is held stays held, however long its handler takes and whatever the worker itself waits for. A
lease that was lost all the same is let go: the acknowledgement will tell.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from millstream.clock import Clock
from millstream.errors import CannotOpen, LeaseLost, MillstreamError, OutcomeUnknown
from millstream.queue.model.message import Message
from millstream.worker.supply import Supply

EARLY = 0.25
"""The share of a lease by which one may be prolonged early, together with others."""
AGAIN_S = 0.05
"""After a failure that may pass."""

Claim = tuple[int, int]


def claim_of(message: Message) -> Claim:
    """What identifies a claim: its id and its attempt."""
    return message.claim_id, message.attempt


def may_pass(error: MillstreamError) -> bool:
    """Whether a worker goes on after an error: what it does may be repeated, and succeed later.

    So it is with a server that is away, and with an unknown outcome: an attempt that was
    ended is ended again without harm.
    """
    return error.retry or isinstance(error, OutcomeUnknown) or is_away(error)


def is_away(error: MillstreamError) -> bool:
    """Whether there is a server that cannot be reached now."""
    return isinstance(error, CannotOpen) and bool(error.data.get("again"))


class Leases:
    """The leases that one worker holds. Any thread may hold and drop."""

    def __init__(self, queue: Supply, *, lease_s: float, clock: Clock) -> None:
        self._queue = queue
        self._lease_s = lease_s
        self._clock = clock
        self._changed = threading.Condition()
        self._held: dict[Claim, tuple[Message, float]] = {}
        self._closed = False
        self.error: Exception | None = None
        """Why no lease is prolonged any more; the worker raises it."""
        self._thread = threading.Thread(target=self._keep, name="millstream-leases", daemon=True)
        self._thread.start()

    def hold(self, messages: Iterable[Message], *, since_s: float) -> None:
        """Prolong the leases of messages that were claimed at, or after, some time."""
        due_s = since_s + self._lease_s / 2
        with self._changed:
            for message in messages:
                self._held[claim_of(message)] = (message, due_s)
            self._changed.notify()

    def drop(self, messages: Iterable[Message]) -> None:
        """Let messages go."""
        with self._changed:
            for message in messages:
                self._held.pop(claim_of(message), None)

    def close(self) -> None:
        """Prolong nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _keep(self) -> None:
        try:
            while (due := self._wait_for_due()) is not None:
                self._prolong(due)
        except Exception as error:
            self.error = error

    def _wait_for_due(self) -> list[Message] | None:
        """What is to be prolonged now, once there is something; None when closed."""
        with self._changed:
            while not self._closed:
                now_s = self._clock.seconds()
                first_s = min((due_s for _, due_s in self._held.values()), default=None)
                if first_s is not None and first_s <= now_s:
                    soon_s = now_s + self._lease_s * EARLY
                    return [message for message, due_s in self._held.values() if due_s <= soon_s]
                self._changed.wait(None if first_s is None else first_s - now_s)
        return None

    def _prolong(self, messages: list[Message]) -> None:
        now_s = self._clock.seconds()
        try:
            self._renew(messages)
        except LeaseLost:
            for message in messages:
                self._prolong_one(message)
        except MillstreamError as error:
            if not may_pass(error):
                raise
            with self._changed:
                self._changed.wait_for(lambda: self._closed, AGAIN_S)
        else:
            self._note(messages, now_s)

    def _prolong_one(self, message: Message) -> None:
        now_s = self._clock.seconds()
        try:
            self._renew([message])
        except LeaseLost:
            self.drop([message])
        except MillstreamError as error:
            if not may_pass(error):
                raise
        else:
            self._note([message], now_s)

    def _renew(self, messages: list[Message]) -> None:
        ordered = sorted(messages, key=claim_of)
        self._queue.renew(ordered, lease=self._lease_s)

    def _note(self, messages: list[Message], now_s: float) -> None:
        with self._changed:
            for message in messages:
                if claim_of(message) in self._held:
                    self._held[claim_of(message)] = (message, now_s + self._lease_s / 2)
