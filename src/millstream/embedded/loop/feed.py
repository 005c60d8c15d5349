"""The feed of a log: one tail in this process, however many coroutines listen or wait.

A feed watches its log, looks once per change, fetches what is new in small pieces, and hands each
piece to all its listeners, in the order of offsets. What this process commits itself may be offered,
and is then not read back. A listener that begins below the feed's position reads up to it first
(`read`, `attach`). Callers that only wait for an offset share the watch and the looks.

    a look fails        waits get the error; listeners: the feed tries again, less and less often
    records expired     listeners are told what they will not get
    records damaged     the same; counted, and the feed goes on behind them
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from millstream.clock import Clock
from millstream.embedded.loop.feed_reads import (
    FETCH_RECORDS_MAX,
    Delivery,
    Missing,
    Recent,
    Seen,
    fetch,
    look_at,
    recall,
)
from millstream.embedded.loop.in_order import InOrder
from millstream.embedded.loop.offset_waits import OffsetWaits
from millstream.errors import CannotOpen, Closed, MillstreamError, Poisoned
from millstream.format import keys
from millstream.log.model.head import Bounds
from millstream.record import Record
from millstream.store.store import Store

T = TypeVar("T")

RETRY_S_MIN = 0.05
RETRY_S_MAX = 2.0
"""The pause after a look or a fetch that failed; it doubles from one failure to the next."""

_logger = logging.getLogger("millstream.feed")


class Listener(Protocol):
    """What hears a feed. Its methods are called in the event loop, must be quick and never wait."""

    position: int
    """The first offset that it has not heard of; the feed moves it on before it tells more."""

    def deliver(self, delivery: Delivery) -> None:
        """Take records that begin at the listener's position."""

    def miss(self, missing: Missing) -> None:
        """Be told that some offsets will not come."""

    def restart(self) -> None:
        """Be told that the log was deleted, or its end was set back: `position` is lower now."""


class FeedSource(Protocol):
    """What feeds need of the session whose event loop they run in."""

    store: Store
    clock: Clock

    async def ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Have a thread of the pool answer."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call in the event loop; from any thread."""


class FeedCounts(Struct):
    """What all feeds of a session have done so far."""

    looks: int = 0
    """Times that a thread was asked how far a log goes."""
    look_s: float = 0.0
    """How long that took, in all."""
    failures: int = 0
    """Looks, fetches and deliveries that failed."""
    skipped: int = 0
    """Records that were damaged, and left out."""


class Feed:
    """One log as this process follows it; belongs to one event loop."""

    def __init__(
        self,
        source: FeedSource,
        log: str,
        forget: Callable[[Feed], None],
        counts: FeedCounts | None = None,
    ) -> None:
        self.log = log
        self.counts = counts or FeedCounts()
        """Shared by the feeds of a session."""
        self.gather_s = 0.0
        """How long news gathers before it is fetched: larger pieces, later."""
        self.fetch_records_max = FETCH_RECORDS_MAX
        """Records of one fetch."""
        self._source = source
        self._forget = forget
        self._order: InOrder[Record] = InOrder()
        self._listeners: tuple[Listener, ...] = ()
        self._behind: dict[int, int | None] = {}
        """How far readers have come that are not at the feed's position yet, by a number of each.

        None: a reader whose client takes nothing now. It reads on where the log then begins.
        """
        self._recent = Recent()
        self._waits = OffsetWaits(source.clock, self._look_soon)
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watched: bytes | None = None
        self._seen: Seen | None = None
        self._holds = 0
        self._sending = 0
        self._offered: list[tuple[int, Sequence[Record]]] = []
        """What was offered in this turn of the event loop."""
        self._deferred = False
        """Whether news waits until what this process commits has been offered."""
        self._is_fresh = False
        """Whether the next look may do with what the store has taken over already."""
        self._error_s = 0.0

    @property
    def position(self) -> int:
        """The first offset that listeners have not heard of."""
        return self._order.position

    @property
    def waiting(self) -> int:
        """How many callers wait and listen."""
        return len(self._waits) + len(self._listeners)

    @property
    def is_heard(self) -> bool:
        """Whether a listener is at the feed's position, and waits for what the feed delivers."""
        return bool(self._listeners)

    @property
    def lowest(self) -> int | None:
        """The first offset that some listener is about to hear or read; None if there is none."""
        wanted = [one for one in self._behind.values() if one is not None]
        if self._listeners:
            wanted.append(self.position)
        return min(wanted, default=None)

    # Waiting for an offset.

    async def wait(
        self, offset: int, timeout_ms: int | None = None, setbacks: int | None = None
    ) -> bool:
        """Wait until there is a record at the offset; False if the time is up before.

        With `setbacks`, the wait also ends once the log's end has gone back more often than that.
        """
        try:
            return await self._waits.wait(offset, timeout_ms, setbacks)
        finally:
            self._end_if_idle()

    # Listening.

    def attach(self, listener: Listener) -> bool:
        """Let a listener hear what comes, from its position on; with the first one the feed begins.

        False if the feed is past that already: the listener reads up to `position` first, and tries
        again without waiting in between.
        """
        if not self._listeners:
            self._restart(listener.position)
        elif listener.position < self.position:
            return False
        self._listeners = (*self._listeners, listener)
        self._look_soon()
        return True

    def detach(self, listener: Listener) -> None:
        """Tell a listener nothing more; harmless if it was not attached."""
        self._listeners = tuple(one for one in self._listeners if one is not listener)
        self._end_if_idle()

    def hold(self) -> None:
        """Stay, also without listeners, until `release`."""
        self._holds += 1

    def release(self) -> None:
        """Give a hold back."""
        self._holds -= 1
        self._end_if_idle()

    @contextmanager
    def reading(self, number: int, position: int) -> Iterator[None]:
        """A block in which a listener reads up to the feed: `lowest` counts it, and the feed stays."""
        self._behind[number] = position
        try:
            yield
        finally:
            self._behind.pop(number, None)
            self._end_if_idle()

    def move(self, number: int, position: int) -> int:
        """Note how far a listener has read, and answer it."""
        self._behind[number] = position
        return position

    def rest(self, number: int) -> None:
        """Note that a listener reads nothing now: no record waits for it, until it moves."""
        self._behind[number] = None

    async def read(self, start: int, stop: int) -> Delivery | Missing:
        """Some of the records in [start, stop), at least one: remembered ones, or fetched."""
        found = self._recent.find(start, stop)
        return found if found is not None else await self._find(start, stop)

    async def _find(self, start: int, stop: int) -> Delivery | Missing:
        """Some of the records: from memory, which needs no thread, or fetched."""
        store = self._source.store
        stop = min(stop, start + self.fetch_records_max)
        found = recall(store, self.log, start, stop)
        if found is not None:
            return found
        return await self._source.ask(fetch, store, self.log, start, stop)

    # What this process commits.

    def begin_send(self) -> None:
        """A commit of this process is under way: what it stores will be offered."""
        self._sending += 1

    def end_send(self) -> None:
        """It has ended, however it did."""
        self._sending -= 1
        if self._deferred and not self._sending:
            self._deferred = False
            self._news.set()
        self._end_if_idle()

    def offer(self, first: int, records: Sequence[Record]) -> None:
        """Deliver records that were just committed, once it is their turn, without fetching them.

        What is offered in one turn of the event loop is delivered together, at its end.
        """
        if not self._listeners:
            return
        if not self._offered:
            asyncio.get_running_loop().call_soon(self._take_offers)
        self._offered.append((first, records))

    def _take_offers(self) -> None:
        offered, self._offered = self._offered, []
        self._deliver([one for piece in offered for one in self._order.take(*piece)])
        if self._order.has_hole:
            self._look_soon()

    # The tail.

    def _look_soon(self) -> None:
        """Look at the store, also for what it has not taken over from other processes yet."""
        self._is_fresh = False
        self._news.set()
        self._source.store.watch.stir()  # another caller may wait
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def _end_if_idle(self) -> None:
        self._source.store.watch.stir()
        if self._listeners or self._waits or self._behind or self._sending or self._holds:
            return
        task, self._task = self._task, None
        if task is not None and not task.get_loop().is_closed():
            task.cancel()
        self._watch(None)
        self._forget(self)

    def _wake(self) -> None:
        """The log may have changed; called from any thread."""
        if not self._news.is_set():
            self._source.call_soon(self._news.set)

    def _watch(self, key: bytes | None) -> None:
        watch = self._source.store.watch
        if self._watched is not None:
            watch.remove(self._watched, self._wake)
        self._watched = key
        if key is not None:
            watch.add(key, self._wake)

    async def _follow(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._look()
                self._error_s = 0.0
            except (Closed, Poisoned, CannotOpen) as error:
                self._waits.fail(error)
                return
            except Exception as error:
                self._waits.fail(error)
                await self._pause_after(error)

    async def _look(self) -> None:
        source, before = self._source, self._seen
        seen = self._glance() if self._is_fresh else None
        self._is_fresh = True
        if seen is None:
            known = 0 if before is None else before.setbacks
            began_s = source.clock.seconds()
            seen = await source.ask(look_at, source.store, self.log, known)
            self.counts.looks += 1
            self.counts.look_s += source.clock.seconds() - began_s
        if seen.key != self._watched:
            self._watch(seen.key)
            self._look_soon()  # a change before the watch began woke no one
        self._seen = seen
        self._waits.settle(seen.end, seen.setbacks)
        if self._listeners:
            self._go_back(before, seen)
            await self._catch_up(seen)

    def _glance(self) -> Seen | None:
        """What the store shows without a lock; None if that is not all. Needs no thread."""
        views, before = self._source.store.views, self._seen
        log_id = views.get(keys.log_name(self.log))
        if not log_id or before is None or before.key != keys.head(log_id):
            return None
        bounds: Bounds | None = views.get(before.key)
        if bounds is None or bounds.setbacks != before.setbacks:
            return None
        return Seen(before.key, bounds.start, bounds.end, bounds.setbacks, None)

    async def _pause_after(self, error: Exception) -> None:
        self.counts.failures += 1
        if not isinstance(error, MillstreamError):
            _logger.exception("feed_failed", extra={"log": self.log}, exc_info=error)
        if not self._listeners:
            return
        self._error_s = min(RETRY_S_MAX, self._error_s * 2) or RETRY_S_MIN
        await asyncio.sleep(self._error_s)
        self._news.set()

    # Records.

    def _go_back(self, before: Seen | None, seen: Seen) -> None:
        """The log is another one, or its end was set back: begin again where that is."""
        if before is None:
            return
        if seen.key != before.key and self.position > seen.end:
            position = seen.start
        elif seen.set_back_to is not None and seen.set_back_to < self.position:
            position = seen.set_back_to
        else:
            return
        self._restart(position)
        for listener in self._listeners:
            listener.position = min(listener.position, position)
            self._tell(listener.restart)

    def _restart(self, position: int) -> None:
        self._order.restart(position)
        self._recent.clear()

    async def _catch_up(self, seen: Seen) -> None:
        """Fetch and deliver up to the end that was seen."""
        self._take_offers()
        if self._sending and not self._order.has_hole:
            self._deferred = True  # what is under way will be offered
            return
        if self.gather_s and seen.end > self.position:
            await asyncio.sleep(self.gather_s)
        while self._listeners and (position := self.position) < seen.end:
            if position < seen.start:
                self._miss(Missing(position, seen.start, "expired"))
                continue
            found = await self._find(position, seen.end)
            if isinstance(found, Missing):
                self._miss(found)
            else:
                self._deliver(self._order.take(found.first, found.records))

    def _deliver(self, records: list[Record]) -> None:
        """Hand records that end at the feed's position to every listener."""
        if not records:
            return
        delivery = Delivery(self.position - len(records), records)
        self._recent.add(delivery)
        first, stop = delivery.first, delivery.stop
        for listener in self._listeners:
            position = listener.position
            if position >= stop:
                continue
            part = delivery if position == first else delivery.since(position)
            listener.position = stop
            self._tell(listener.deliver, part)

    def _miss(self, missing: Missing) -> None:
        if missing.why == "damaged":
            self.counts.skipped += missing.stop - missing.first
            _logger.warning(
                "records_skipped",
                extra={"log": self.log, "first": missing.first, "stop": missing.stop},
            )
        held = self._order.skip(missing.stop)
        for listener in self._listeners:
            if listener.position < missing.stop:
                first = max(missing.first, listener.position)
                listener.position = missing.stop
                self._tell(listener.miss, Missing(first, missing.stop, missing.why))
        self._deliver(held)

    def _tell(self, method: Callable[..., None], *arguments: Any) -> None:
        """Call a listener; one that fails is not in the way of the others."""
        try:
            method(*arguments)
        except Exception:
            self.counts.failures += 1
            _logger.exception("listener_failed", extra={"log": self.log})
