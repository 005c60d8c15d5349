"""Quotas: how much one token may ask for at once, so that it cannot starve the rest.

Tickets count for the token that they were made with; all requests without a token count as one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from weakref import WeakValueDictionary

from millstream.clock import Clock
from millstream.errors import Overloaded
from millstream.queue.model import pace
from millstream.server.auth.access import Principal
from millstream.server.auth.turns import Turns
from millstream.server.settings import MiB, Settings

CONNECTIONS_RETRY_S = 1

TURNS = 8
"""Queries of one token that run, or wait for a thread, at once: the others of it wait in line."""

SENDING_BYTES_MAX = 256 * MiB
"""Answers of REST that are on their way to the clients of one token."""

RECEIVING_BYTES_MAX = 512 * MiB
"""Bodies of one token that are arriving, or being carried out."""

SMALL_BYTES = 64 * 1024
"""A body or an answer of up to so much is not counted."""


class Quota:
    """The rates and connections of every token; belongs to one event loop."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._rate = settings.requests_per_second
        self._connections_max = settings.connections_per_token_max
        self._clock = clock
        self._paid_until_ms: dict[str, float] = {}
        self._connections: Counter[str] = Counter()
        self._requests_max = settings.requests_per_token_max
        self._requests: dict[str, int] = {}
        self._sending: Counter[str] = Counter()
        self._receiving: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, Turns] = WeakValueDictionary()
        self._parsing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

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

    def begin(self, principal: Principal) -> None:
        """A request of a token is carried out from now on, until `end`. Raises `Overloaded`.

        Clients without a token cannot be told apart, and are not counted.
        """
        running = self._requests.get(principal.token, 0)
        if running >= self._requests_max:
            raise Overloaded(
                f"{running:,} requests of {principal.name} are being carried out; wait for some",
                retry_after_s=CONNECTIONS_RETRY_S,
                limit=self._requests_max,
            )
        self._requests[principal.token] = running + 1

    def turns(self, principal: Principal) -> Turns:
        """To be held while a query of a token runs, so that it never has all threads for long."""
        found = self._turns.get(principal.token)
        if found is None:
            found = self._turns[principal.token] = Turns(TURNS)
        return found

    def parsing(self, principal: Principal) -> asyncio.Lock:
        """To be held while a large frame of a token is decoded: one of them at a time."""
        found = self._parsing.get(principal.token)
        if found is None:
            found = self._parsing[principal.token] = asyncio.Lock()
        return found

    def end(self, principal: Principal) -> None:
        """A request that was begun is over."""
        left = self._requests[principal.token] - 1
        if left:
            self._requests[principal.token] = left
        else:
            del self._requests[principal.token]

    @contextmanager
    def receiving(self, principal: Principal) -> Iterator[Callable[[int], None]]:
        """Take a body in: what is yielded is called with each piece's size, and may refuse it."""
        token, held = principal.token, 0

        def grow(size: int) -> None:
            nonlocal held
            if self._receiving[token] + size > RECEIVING_BYTES_MAX:
                raise Overloaded(
                    f"{principal.name} sends {self._receiving[token]:,} bytes at once already; "
                    "wait until some of them are stored",
                    retry_after_s=CONNECTIONS_RETRY_S,
                    limit=RECEIVING_BYTES_MAX,
                )
            self._receiving[token] += size
            held += size

        try:
            yield grow
        finally:
            self._receiving[token] -= held
            if not self._receiving[token]:
                del self._receiving[token]

    @contextmanager
    def sending(self, principal: Principal, size: int) -> Iterator[None]:
        """Send an answer of so many bytes. Raises `Overloaded` if too many are on their way."""
        if size <= SMALL_BYTES:
            yield
            return
        if self._sending[principal.token] + size > SENDING_BYTES_MAX:
            raise Overloaded(
                f"{principal.name} has {self._sending[principal.token]:,} bytes of answers to read "
                "already; read them, or ask for less at once",
                retry_after_s=CONNECTIONS_RETRY_S,
                limit=SENDING_BYTES_MAX,
            )
        self._sending[principal.token] += size
        try:
            yield
        finally:
            self._sending[principal.token] -= size
            if not self._sending[principal.token]:
                del self._sending[principal.token]

    def _forget_idle(self, now_ms: int) -> None:
        """Forget tokens that have all of their rate back: they are as good as new."""
        if len(self._paid_until_ms) >= 1_000:
            since_ms = now_ms - max(pace.SECOND_MS, pace.SECOND_MS / self._rate)
            self._paid_until_ms = {
                token: paid_ms
                for token, paid_ms in self._paid_until_ms.items()
                if paid_ms > since_ms
            }
