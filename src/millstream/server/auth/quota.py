"""Quotas: bounds on the load of each token, so that no token starves the others.

A ticket counts for its token. All requests without a token count together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import ceil
from weakref import WeakValueDictionary

from millstream.clock import Clock
from millstream.errors import Overloaded
from millstream.queue.model import rates
from millstream.server.auth.access import Principal
from millstream.server.auth.query_turns import Turns
from millstream.server.settings import MiB, Settings

RETRY_S = 1

TURNS = 8
"""Queries of one token that run or wait for a thread at the same time; further queries wait."""

ENTERING = 16
"""Clients of one token that enter rooms at the same time; further clients wait, so that a crowd does
not fill each turn of the event loop."""

SENDING_BYTES_MAX = 256 * MiB
"""Bytes of REST answers on the way to the clients of one token."""

RECEIVING_BYTES_MAX = 512 * MiB
"""Bytes of bodies of one token that arrive or are being carried out."""

WAITING_BYTES_MAX = SENDING_BYTES_MAX // 2
"""Unread bytes of one token that may wait for slow listeners of rooms. Beyond, listeners get a gap, so
that REST answers find space."""

SMALL_BYTES = 64 * 1024
"""Smaller bodies and answers are not counted."""


class Share:
    """An amount that each token may hold, up to a bound."""

    def __init__(self, limit: int, refusal: str) -> None:
        self._limit = limit
        self._refusal = refusal
        self._held: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether a token holds a part of it."""
        return bool(self._held)

    def fits(self, principal: Principal, amount: int, limit: int) -> bool:
        """Whether a token would stay within a limit if it took an amount."""
        return self._held.get(principal.token, 0) + amount <= limit

    def take(self, principal: Principal, amount: int = 1) -> None:
        """Take an amount for a token, until `give`. Raises `Overloaded` beyond the bound."""
        held = self._held.get(principal.token, 0)
        if held + amount > self._limit:
            raise Overloaded(
                self._refusal.format(name=principal.name, held=held),
                retry_after_s=RETRY_S,
                limit=self._limit,
            )
        self._held[principal.token] = held + amount

    def give(self, principal: Principal, amount: int = 1) -> None:
        """Give an amount back."""
        still_held = self._held.pop(principal.token, 0) - amount
        if still_held > 0:
            self._held[principal.token] = still_held

    @contextmanager
    def held(self, principal: Principal, amount: int = 1) -> Iterator[None]:
        """Take an amount while the block runs."""
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
        """Whether there is a rate limit for requests."""
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
        """Running requests; clients without a token cannot be told apart, and are not counted."""
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
        """Pay for requests. Raises `Overloaded`, with `retry_after_s`, beyond the rate limit."""
        if not self._rate:
            return
        now_ms = self._clock.boot_ms()
        paid_ms = self._paid_until_ms.get(principal.token, rates.NEVER_MS)
        if rates.affordable(self._rate, paid_ms, now_ms) < 1:
            wait_s = max(1, ceil((rates.next_ms(self._rate, paid_ms) - now_ms) / 1000))
            raise Overloaded(
                f"{principal.name} may ask {self._rate:g} times per second; wait {wait_s} s",
                retry_after_s=wait_s,
                requests_per_second=self._rate,
            )
        self._forget_idle(now_ms)
        self._paid_until_ms[principal.token] = rates.paid(self._rate, paid_ms, now_ms, requests)

    def turns(self, principal: Principal) -> Turns:
        """Return the turns of a token; a query holds a turn, so that no token has all threads."""
        turns = self._turns.get(principal.token)
        if turns is None:
            turns = self._turns[principal.token] = Turns(TURNS)
        return turns

    def parsing(self, principal: Principal) -> asyncio.Lock:
        """Return the lock for decoding large frames of a token, a single frame at a time."""
        return self._parsing.setdefault(principal.token, asyncio.Lock())

    def entering(self, principal: Principal) -> asyncio.Semaphore:
        """Return the semaphore that a client holds while it enters a room."""
        entering = self._entering.get(principal.token)
        if entering is None:
            entering = self._entering[principal.token] = asyncio.Semaphore(ENTERING)
        return entering

    @contextmanager
    def receiving(self, principal: Principal) -> Iterator[Callable[[int], None]]:
        """Count a body that arrives; the yielded function takes each piece's size, and may refuse."""
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
        """Count an answer while it is sent. Raises `Overloaded` beyond the bound."""
        return nullcontext() if size <= SMALL_BYTES else self.unread.held(principal, size)

    def let_wait(self, principal: Principal, size: int) -> bool:
        """Count bytes that wait for a slow listener, until `wait_no_more`; False beyond the bound."""
        if not self.unread.fits(principal, size, WAITING_BYTES_MAX):
            return False
        self.unread.take(principal, size)
        return True

    def wait_no_more(self, principal: Principal, size: int) -> None:
        """Stop counting bytes of a slow listener: they are sent, or dropped."""
        self.unread.give(principal, size)

    def _forget_idle(self, now_ms: int) -> None:
        """Forget tokens whose whole rate has come back."""
        if len(self._paid_until_ms) >= 1_000:
            since_ms = now_ms - max(rates.SECOND_MS, rates.SECOND_MS / self._rate)
            self._paid_until_ms = {
                token: paid_ms
                for token, paid_ms in self._paid_until_ms.items()
                if paid_ms > since_ms
            }
