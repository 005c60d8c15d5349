"""The rate of refused requests: how many a server answers on one connection, and how fast; pure.

A refusal costs the server about as much as a request, and its client nothing. So the first refusals
are free. Refusals beyond them are answered no faster than a rate, because the connection is not read
meanwhile, and in the end the connection is closed. Quiet between refusals gives some back.

An answer that tells a client about the state of the store is no refusal, since clients use these
answers to decide what to do next: `is_refusal` says which errors count.
"""

from __future__ import annotations

import math

from msgspec import Struct

from millstream.errors import Denied, InvalidInput, MillstreamError, Overloaded

RATES = frozenset({"requests_per_second", "messages_per_second"})
"""Data of an `Overloaded` that says that its client is over a rate."""

TOO_MANY = "too many refused requests on this connection; mend the client, and come again"
"""What a client is told when its connection is closed."""


class Allowance(Struct, frozen=True):
    """How many refusals a connection gets."""

    free: int = 100
    """Refusals that cost no time."""
    per_s: float = 50.0
    """Refusals per second beyond them, and how many are forgotten in each second."""
    most: int = 500
    """Refusals after which the connection is closed, but for those that quiet has made good."""
    quiet_s: float = 1.0
    """How long a client must have been quiet between two refusals before that counts as quiet."""


ONE_USER = Allowance()
"""For a connection that carries one request after the other, or a single client of a room."""


def shared_by(requests_max: int) -> Allowance:
    """Return the allowance of a connection for up to `requests_max` requests of as many threads.

    Each thread may be refused once per second without end: a client that waits for
    `retry_after_s` is refused that often. The threads of a client never pause at the same time.
    """
    return Allowance(
        free=max(ONE_USER.free, 4 * requests_max),
        per_s=max(ONE_USER.per_s, float(requests_max)),
        most=max(ONE_USER.most, 12 * requests_max),
        quiet_s=0.0,
    )


def is_refusal(error: object) -> bool:
    """Whether an answer counts: the request can never succeed, or its client is over its rate."""
    if isinstance(error, Overloaded):
        return not RATES.isdisjoint(error.data)
    return isinstance(error, MillstreamError) and isinstance(error, Denied | InvalidInput)


class RefusalCount:
    """The refusals of one connection."""

    __slots__ = ("_allowance", "_count", "_rest_until_s", "_seen_s", "_total")

    def __init__(self, allowance: Allowance = ONE_USER) -> None:
        self._allowance = allowance
        self._count = 0.0
        self._total = 0.0
        self._seen_s = 0.0
        self._rest_until_s = 0.0

    def refuse(self, now_s: float) -> float:
        """Count a refusal; for how many seconds the client is not read, infinite: close it."""
        allowance, passed_s = self._allowance, max(0.0, now_s - self._seen_s)
        if self._rest_until_s > self._seen_s:  # the pause was no choice of the client
            quiet_s = now_s - self._rest_until_s - ONE_USER.quiet_s
        else:
            quiet_s = passed_s - allowance.quiet_s
        self._seen_s = now_s
        self._count = max(0.0, self._count - passed_s * allowance.per_s) + 1
        self._total = max(0.0, self._total - max(0.0, quiet_s) * allowance.per_s) + 1
        if self._total > allowance.most:
            return math.inf
        pause_s = max(0.0, self._count - allowance.free) / allowance.per_s
        self._rest_until_s = now_s + pause_s
        return pause_s
