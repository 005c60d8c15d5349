"""Backoff: how long a message waits before it is tried again; a pure rule."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.units import parse_duration

FACTOR_MAX = 100.0
WAIT_S_MAX = 10 * 366 * 24 * 3600
"""As long as a delay may be."""


class Backoff(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The wait after the n-th attempt: fixed, growing by a factor up to `most`, or from a list."""

    kind: Literal["fixed", "exponential", "list"] = "exponential"
    first: float = 1.0
    """In seconds, like all waits."""
    factor: float = 2.0
    most: float = 3_600.0
    jitter: float = 0.1
    """The share by which a wait may be longer or shorter, so that retries do not come in step."""
    waits: tuple[float, ...] = ()

    def check(self) -> None:
        """Refuse values outside their ranges."""
        waits = (self.first, self.most, *self.waits)
        if not all(0 <= wait <= WAIT_S_MAX for wait in waits):
            raise InvalidInput(
                f"backoff: a wait must be from 0 to {WAIT_S_MAX:,} seconds, got {min(waits):g} to "
                f"{max(waits):g}"
            )
        if not 1.0 <= self.factor <= FACTOR_MAX:
            raise InvalidInput(
                f"backoff: its factor must be from 1 to {FACTOR_MAX:g}, got {self.factor}"
            )
        if not 0.0 <= self.jitter <= 1.0:
            raise InvalidInput(f"backoff: its jitter must be from 0 to 1, got {self.jitter}")
        if self.kind == "list" and not self.waits:
            raise InvalidInput("backoff: one of kind 'list' must have at least one wait, got none")

    def wait_ms(self, attempt: int, luck: float) -> int:
        """Return the wait after an attempt, counted from 1; `luck` is a random number in [0, 1)."""
        if self.kind == "fixed":
            wait_s = self.first
        elif self.kind == "list":
            wait_s = self.waits[min(attempt, len(self.waits)) - 1]
        else:
            steps = min(attempt - 1, 64)
            wait_s = min(self.first * self.factor**steps, self.most)
        return max(0, round(wait_s * 1000 * (1 + self.jitter * (2 * luck - 1))))


def backoff_of_text(text: str) -> Backoff:
    """Parse `5s`, `1s,10s,1m` or `1s*2` into a backoff."""
    first, times, factor = text.partition("*")
    waits = tuple(parse_duration(wait) for wait in first.split(","))
    if times:
        try:
            return Backoff(first=waits[0], factor=float(factor))
        except ValueError:
            raise InvalidInput(
                f"a growing backoff must look like 1s*2, not {text!r:.100}"
            ) from None
    if len(waits) == 1:
        return Backoff(kind="fixed", first=waits[0], jitter=0.0)
    return Backoff(kind="list", waits=waits, jitter=0.0)
