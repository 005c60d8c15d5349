"""Rates: how fast messages may be handed out, as pure rules over a clock.

A rate is paid for in advance: every claim moves `paid_until_ms` on by its share of a second. It may
lag behind the clock by the time of a burst: so much may be claimed at once after a pause. A burst of
0 is the default: a second, or the time of one message if that is longer.
"""

from __future__ import annotations

SECOND_MS = 1000
NEVER_MS = -1e15
"""Before the first claim."""


def affordable(rate: float, paid_until_ms: float, now_ms: int, burst: int = 0) -> int:
    """Return how many claims the rate allows now."""
    return int((now_ms - _from(rate, paid_until_ms, now_ms, burst)) * rate / SECOND_MS + 1e-6)


def paid(rate: float, paid_until_ms: float, now_ms: int, claims: int, burst: int = 0) -> float:
    """Return the time until which the rate is used up after `claims` claims."""
    return _from(rate, paid_until_ms, now_ms, burst) + claims * SECOND_MS / rate


def next_ms(rate: float, paid_until_ms: float) -> int:
    """Return the time at which the rate allows one more claim."""
    return int(paid_until_ms + SECOND_MS / rate) + 1


def _from(rate: float, paid_until_ms: float, now_ms: int, burst: int) -> float:
    lag_ms = burst * SECOND_MS / rate if burst else max(SECOND_MS, SECOND_MS / rate)
    return max(paid_until_ms, now_ms - lag_ms)
