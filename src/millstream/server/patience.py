"""Patience: how many refused requests of one connection a server answers, and how fast; pure.

A refusal costs the server about as much as a request, and its client nothing. So the first refusals
are free, those beyond are answered no faster than `PER_S`, because the connection is not read
meanwhile, and in the end the connection is closed. Each second without a refusal gives some back.
"""

from __future__ import annotations

import math

FREE = 100
"""Refusals of one connection that cost it no time."""

PER_S = 50.0
"""Refusals per second beyond them, and how many are forgotten in each second."""

MAX = 500
"""Refusals after which a connection is closed, unless the time between them was long enough."""

TOO_MANY = f"more than {MAX} refused requests on this connection; mend the client, and come again"
"""What a client is told then."""


class RefusalCount:
    """The refusals of one connection."""

    __slots__ = ("_count", "_seen_s", "_total")

    def __init__(self) -> None:
        self._count = 0.0
        self._total = 0.0
        self._seen_s = 0.0

    def refuse(self, now_s: float) -> float:
        """Count a refusal; for how many seconds the client is not read, infinite: close it."""
        passed_s = max(0.0, now_s - self._seen_s)
        self._seen_s = now_s
        self._count = max(0.0, self._count - passed_s * PER_S) + 1
        # The pauses alone are not enough quiet for `_total` to sink.
        self._total = max(0.0, self._total - max(0.0, passed_s - 1) * PER_S) + 1
        if self._total > MAX:
            return math.inf
        return max(0.0, self._count - FREE) / PER_S
