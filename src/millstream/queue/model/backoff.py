"""Backoff: how long a message waits before it is tried again; a pure rule."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from millstream.errors import InvalidInput

FACTOR_MAX = 100.0


class Backoff(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The wait after the n-th attempt: fixed, growing by a factor up to a most, or from a list."""

    kind: Literal["fixed", "exponential", "list"] = "exponential"
    first_ms: int = 1_000
    factor: float = 2.0
    most_ms: int = 3_600_000
    jitter: float = 0.1
    """The share by which a wait may be longer or shorter, so that retries do not come in step."""
    waits_ms: tuple[int, ...] = ()

    def check(self) -> None:
        """Refuse values outside their ranges."""
        least_ms = min(self.first_ms, self.most_ms, *self.waits_ms)
        if least_ms < 0:
            raise InvalidInput(f"a backoff's waits must be 0 ms or longer, got {least_ms} ms")
        if not 1.0 <= self.factor <= FACTOR_MAX:
            raise InvalidInput(
                f"a backoff's factor must be from 1 to {FACTOR_MAX:g}, got {self.factor}"
            )
        if not 0.0 <= self.jitter <= 1.0:
            raise InvalidInput(f"a backoff's jitter must be from 0 to 1, got {self.jitter}")
        if self.kind == "list" and not self.waits_ms:
            raise InvalidInput("a backoff of kind 'list' must have at least one wait, got none")

    def wait_ms(self, attempt: int, luck: float) -> int:
        """The wait after an attempt, counted from 1; `luck` is a random number in [0, 1)."""
        if self.kind == "fixed":
            plain: float = self.first_ms
        elif self.kind == "list":
            plain = self.waits_ms[min(attempt, len(self.waits_ms)) - 1]
        else:
            steps = min(attempt - 1, 64)
            plain = min(self.first_ms * self.factor**steps, self.most_ms)
        return max(0, round(plain * (1 + self.jitter * (2 * luck - 1))))
