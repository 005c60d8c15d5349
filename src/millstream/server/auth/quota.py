"""Quotas: how much one token may ask for at once, so that it cannot starve the rest.

Tickets count for the token that they were made with; all requests without a token count as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import ceil
from weakref import WeakValueDictionary

from millstream.clock import Clock
from millstream.errors import Overloaded
from millstream.queue.model import pace
from millstream.server.auth.access import Principal
from millstream.server.auth.turns import Turns
from millstream.server.settings import MiB, Settings

RETRY_S = 1

TURNS = 8
"""Queries of one token that run, or wait for a thread, at once: the others of it wait in line."""

ENTERING = 16
"""Clients of one token that enter rooms at once: the others wait in line, so that a crowd does not
fill each turn of the event loop."""

SENDING_BYTES_MAX = 256 * MiB
"""Answers of REST that are on their way to the clients of one token."""

RECEIVING_BYTES_MAX = 512 * MiB
"""Bodies of one token that are arriving, or being carried out."""

WAITING_BYTES_MAX = SENDING_BYTES_MAX // 2
"""Unread answers of one token up to which more may wait for its slow listeners of rooms: these get a
gap then, and leave the rest to answers of REST."""

SMALL_BYTES = 64 * 1024
"""A body or an answer of up to so much is not counted."""


class Share:
    """How much of something each token holds, up to a bound."""

    def __init__(self, most: int, refusal: str) -> None:
        self._most = most
        self._refusal = refusal
        self._held: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether any token holds any."""
        return bool(self._held)

    def fits(self, principal: Principal, amount: int, most: int) -> bool:
        """Whether a token would hold no more than `most` with so much more."""
        return self._held.get(principal.token, 0) + amount <= most

    def take(self, principal: Principal, amount: int = 1) -> None:
        """Hold so much more, until `give`. Raises `Overloaded` if that is too much."""
        held = self._held.get(principal.token, 0)
        if held + amount > self._most:
            raise Overloaded(
                self._refusal.format(name=principal.name, held=held),
                retry_after_s=RETRY_S,
                limit=self._most,
            )
        self._held[principal.token] = held + amount

    def give(self, principal: Principal, amount: int = 1) -> None:
        """Hold so much less."""
        left = self._held.pop(principal.token, 0) - amount
        if left > 0:
            self._held[principal.token] = left

    @contextmanager
    def held(self, principal: Principal, amount: int = 1) -> Iterator[None]:
        """Hold so much while the block runs."""
        self.take(principal, amount)
        try:
            yield
        finally:
            self.give(principal, amount)


class Quota:
    """The rates and connections of every token; belongs to one event loop."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._rate = settings.requests_per_second
        self.is_limited = bool(self._rate)
        """Whether requests have to be paid for."""
        self._clock = clock
        self._paid_until_ms: dict[str, float] = {}
        self.connections = Share(
            settings.connections_per_token_max,
            "{name} has {held:,} connections already; close some",
        )
        self.requests = Share(
            settings.requests_per_token_max,
            "{held:,} requests of {name} are being carried out; wait for some",
        )
        """Clients without a token cannot be told apart, and are not counted."""
        self.unread = Share(
            SENDING_BYTES_MAX,
            "{name} has {held:,} bytes of answers to read already; read them, or ask for less at once",
        )
        self._receiving = Share(
            RECEIVING_BYTES_MAX,
            "{name} sends {held:,} bytes at once already; wait until some of them are stored",
        )
        self._turns: WeakValueDictionary[str, Turns] = WeakValueDictionary()
        self._parsing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._entering: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

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

    def turns(self, principal: Principal) -> Turns:
        """To be held while a query of a token runs, so that it never has all threads for long."""
        found = self._turns.get(principal.token)
        if found is None:
            found = self._turns[principal.token] = Turns(TURNS)
        return found

    def parsing(self, principal: Principal) -> asyncio.Lock:
        """To be held while a large frame of a token is decoded: one of them at a time."""
        return self._parsing.setdefault(principal.token, asyncio.Lock())

    def entering(self, principal: Principal) -> asyncio.Semaphore:
        """To be held while a client enters a room."""
        found = self._entering.get(principal.token)
        if found is None:
            found = self._entering[principal.token] = asyncio.Semaphore(ENTERING)
        return found

    @contextmanager
    def receiving(self, principal: Principal) -> Iterator[Callable[[int], None]]:
        """Take a body in: what is yielded is called with each piece's size, and may refuse it."""
        held = 0

        def grow(size: int) -> None:
            nonlocal held
            self._receiving.take(principal, size)
            held += size

        try:
            yield grow
        finally:
            self._receiving.give(principal, held)

    def sending(self, principal: Principal, size: int) -> AbstractContextManager[None]:
        """Send an answer of so many bytes. Raises `Overloaded` if too many are on their way."""
        return nullcontext() if size <= SMALL_BYTES else self.unread.held(principal, size)

    def let_wait(self, principal: Principal, size: int) -> bool:
        """Count bytes that wait for a slow listener, until `wait_no_more`; False if they may not."""
        if not self.unread.fits(principal, size, WAITING_BYTES_MAX):
            return False
        self.unread.take(principal, size)
        return True

    def wait_no_more(self, principal: Principal, size: int) -> None:
        """Bytes that waited for a slow listener are sent, or dropped."""
        self.unread.give(principal, size)

    def _forget_idle(self, now_ms: int) -> None:
        """Forget tokens that have all of their rate back: they are as good as new."""
        if len(self._paid_until_ms) >= 1_000:
            since_ms = now_ms - max(pace.SECOND_MS, pace.SECOND_MS / self._rate)
            self._paid_until_ms = {
                token: paid_ms
                for token, paid_ms in self._paid_until_ms.items()
                if paid_ms > since_ms
            }
