"""Quotas: how much one token may ask for at once, so that it cannot starve the rest.

Tickets count for the token that they were made with; whoever needs no token counts as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

from millstream.clock import Clock
from millstream.errors import Overloaded
from millstream.queue import pace
from millstream.server.access import Principal
from millstream.server.settings import Settings

CONNECTIONS_RETRY_S = 1


class Quota:
    """The rates and connections of every token; belongs to one event loop."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._rate = settings.requests_per_second
        self._connections_max = settings.connections_per_token_max
        self._clock = clock
        self._paid_until_ms: dict[str, float] = {}
        self._connections: Counter[str] = Counter()

    def spend(self, principal: Principal, requests: int = 1) -> None:
        """Pay for requests. Raises `Overloaded`, with `retry_after_s`, if there were too many."""
        if not self._rate:
            return
        now_ms = self._clock.boot_ms()
        paid_ms = self._paid_until_ms.get(principal.token, pace.NEVER_MS)
        if pace.affordable(self._rate, paid_ms, now_ms) < 1:
            wait_s = max(1, ceil((pace.next_ms(self._rate, paid_ms) - now_ms) / 1000))
            raise Overloaded(
                f"{principal.name} may ask {self._rate:g} times per second; wait {wait_s} s",
                retry_after_s=wait_s,
                requests_per_second=self._rate,
            )
        self._forget_idle(now_ms)
        self._paid_until_ms[principal.token] = pace.paid(self._rate, paid_ms, now_ms, requests)

    @contextmanager
    def connection(self, principal: Principal) -> Iterator[None]:
        """Hold one of a token's connections. Raises `Overloaded` if it has too many."""
        if self._connections[principal.token] >= self._connections_max:
            raise Overloaded(
                f"{principal.name} has {self._connections_max:,} connections already; close some",
                retry_after_s=CONNECTIONS_RETRY_S,
                limit=self._connections_max,
            )
        self._connections[principal.token] += 1
        try:
            yield
        finally:
            self._connections[principal.token] -= 1
            if not self._connections[principal.token]:
                del self._connections[principal.token]

    def _forget_idle(self, now_ms: int) -> None:
        """Tokens come and go: of those that have all of their rate back, nothing is to be known."""
        if len(self._paid_until_ms) >= 1_000:
            since_ms = now_ms - max(pace.SECOND_MS, pace.SECOND_MS / self._rate)
            self._paid_until_ms = {
                token: paid_ms
                for token, paid_ms in self._paid_until_ms.items()
                if paid_ms > since_ms
            }
