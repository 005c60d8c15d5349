"""How many messages of a queue are in each state, and how fast they come and go."""

from __future__ import annotations

from math import exp

from msgspec import Struct

RATE_WINDOW_S = 60


class Counts(Struct, array_like=True):
    """How many messages are in each state; or by how much that changes."""

    available: int = 0
    in_flight: int = 0
    done: int = 0
    failed: int = 0
    waiting: int = 0
    """Available messages that wait for a retry or a delay, by store time."""
    scheduled: int = 0
    """Available messages that wait for a wall time."""
    ready: int = 0
    """Available messages in the index of claimable messages."""
    fresh: int = 0
    """Available messages that wait in a lane."""
    placed: int = 0
    """The fields from here on are totals since the queue was made."""
    claimed: int = 0
    retried: int = 0
    expired: int = 0
    duplicates: int = 0
    lost: int = 0
    """Records that a log deleted before a lossy queue routed them."""
    unknown: int = 0
    """Records for which the filter had no answer; large numbers are an estimate."""

    def add(self, by: Counts) -> None:
        """Add the differences `by`."""
        self.available += by.available
        self.in_flight += by.in_flight
        self.done += by.done
        self.failed += by.failed
        self.waiting += by.waiting
        self.scheduled += by.scheduled
        self.ready += by.ready
        self.fresh += by.fresh
        self.placed += by.placed
        self.claimed += by.claimed
        self.retried += by.retried
        self.expired += by.expired
        self.duplicates += by.duplicates
        self.lost += by.lost
        self.unknown += by.unknown


class Rates(Struct, array_like=True):
    """How many messages per second come and go, mostly in the last minute."""

    at_ms: int = 0
    placed: float = 0.0
    done: float = 0.0

    def note(self, placed: int, done: int, at_ms: int) -> None:
        """Count messages that were placed and done."""
        if at_ms > self.at_ms:
            self.placed, self.done = self.now(at_ms)
            self.at_ms = at_ms
        self.placed += placed / RATE_WINDOW_S
        self.done += done / RATE_WINDOW_S

    def now(self, at_ms: int) -> tuple[float, float]:
        """Return the rates at a time. The weight of old messages decays exponentially."""
        faded = exp(-max(0, at_ms - self.at_ms) / (1000 * RATE_WINDOW_S))
        return self.placed * faded, self.done * faded
