"""Pace: how fast messages may be handed out, as pure rules over a clock.

A rate is paid for in advance: every claim moves `paid_until_ms` on by its share of a second. It may
lag behind the clock by a second, or by the time of one message if that is longer: so much may be
claimed at once after a pause.
"""

from __future__ import annotations

SECOND_MS = 1000
NEVER_MS = -1e15
"""Before the first claim."""


def affordable(rate: float, paid_until_ms: float, now_ms: int) -> int:
    """Return how many claims the rate allows now."""
    return int((now_ms - _from(rate, paid_until_ms, now_ms)) * rate / SECOND_MS + 1e-6)


def paid(rate: float, paid_until_ms: float, now_ms: int, claims: int) -> float:
    """Return the time until which the rate is used up after `claims` claims."""
    return _from(rate, paid_until_ms, now_ms) + claims * SECOND_MS / rate


def next_ms(rate: float, paid_until_ms: float) -> int:
    """Return the time at which the rate allows one more claim."""
    return int(paid_until_ms + SECOND_MS / rate) + 1


def _from(rate: float, paid_until_ms: float, now_ms: int) -> float:
    return max(paid_until_ms, now_ms - max(SECOND_MS, SECOND_MS / rate))
