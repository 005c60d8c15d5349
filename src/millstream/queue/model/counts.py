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
    """Of the available ones, those that wait for a retry or a delay, by store time."""
    scheduled: int = 0
    """Of the available ones, those that wait for a wall time."""
    ready: int = 0
    """Of the available ones, those in the index of what may be claimed."""
    fresh: int = 0
    """Of the available ones, those that wait in a lane."""
    placed: int = 0
    """From here on: how many there ever were."""
    claimed: int = 0
    retried: int = 0
    expired: int = 0
    duplicates: int = 0
    lost: int = 0
    """Records that a log forgot before a lossy queue had looked at them."""
    unknown: int = 0
    """Records of which the filter could not say whether they match; of many, an estimate."""

    def add(self, by: Counts) -> None:
        """Change by so much."""
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
        """Count what came and went."""
        if at_ms > self.at_ms:
            self.placed, self.done = self.now(at_ms)
            self.at_ms = at_ms
        self.placed += placed / RATE_WINDOW_S
        self.done += done / RATE_WINDOW_S

    def now(self, at_ms: int) -> tuple[float, float]:
        """The rates at a time: old messages count for less and less."""
        faded = exp(-max(0, at_ms - self.at_ms) / (1000 * RATE_WINDOW_S))
        return self.placed * faded, self.done * faded
