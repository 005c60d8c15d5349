"""The feed of a log: a single tail in this process for all coroutines that listen or wait.

A feed watches its log, looks once per change, fetches new records in small pieces, and delivers
each piece to all listeners in offset order. Records committed by this process may be offered, and
are then not read back. A listener that begins below the feed's position first reads up to it
(`read`, `attach`). Callers that only wait for an offset share the watch and the looks.

    a look fails        waits get the error; with listeners, the feed retries with growing pauses
    records expired     listeners are told the missing offsets
    records damaged     the same; the records are counted, and the feed continues behind them
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
    fetch,
    look_at,
    recall,
    watched_key,
)
from millstream.embedded.loop.in_order import InOrder
from millstream.embedded.loop.offset_waits import OffsetWaits
from millstream.errors import CannotOpen, Closed, MillstreamError, Poisoned
from millstream.format import keys
from millstream.log.model.head import Bounds
from millstream.record import Extent, Record
from millstream.store.store import Store

T = TypeVar("T")

RETRY_S_MIN = 0.05
RETRY_S_MAX = 2.0
"""The longest pause after a failed look or fetch; pauses double."""

_logger = logging.getLogger("millstream.feed")


class FeedListener(Protocol):
    """A listener of a feed. The event loop calls its methods, so they must return quickly."""

    position: int
    """The first offset that was not delivered; the feed advances it before each call."""

    def deliver(self, delivery: Delivery) -> None:
        """Take records that begin at the listener's position."""

    def miss(self, missing: Missing) -> None:
        """Note that offsets will not be delivered."""

    def restart(self) -> None:
        """Note that the name stands for another log: `position` is lower now."""


class FeedSource(Protocol):
    """The parts of a session that feeds need."""

    store: Store
    clock: Clock

    async def ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Run a function in a thread of the pool."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call in the event loop; from any thread."""


class FeedCounts(Struct):
    """Counters of all feeds of a session."""

    looks: int = 0
    """The number of looks by threads."""
    look_s: float = 0.0
    """The total duration of these looks."""
    failures: int = 0
    """Failed looks, fetches and deliveries."""
    skipped: int = 0
    """Damaged records that were left out."""


class Feed:
    """A log as followed by this process; belongs to an event loop."""

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
        """How long new records gather before a fetch: larger pieces, later."""
        self.fetch_records_max = FETCH_RECORDS_MAX
        """The most records in a fetch."""
        self._source = source
        self._forget = forget
        self._order: InOrder[Record] = InOrder()
        self._listeners: tuple[FeedListener, ...] = ()
        self._behind: dict[int, int | None] = {}
        """The position of each reader below the feed's position, by the reader's number.

        None for a paused reader, whose client takes no records now. It continues at the start of
        the log.
        """
        self._recent = Recent()
        self._waits = OffsetWaits(source.clock, self._look_soon)
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watched: bytes | None = None
        self._extent: Extent | None = None
        self._holds = 0
        self._sending = 0
        self._offered: list[tuple[int, Sequence[Record]]] = []
        """Records offered in this turn of the event loop."""
        self._deferred = False
        """Whether a look waits until records committed by this process are offered."""
        self._is_fresh = False
        """Whether the next look may skip commits of other processes."""
        self._error_s = 0.0

    @property
    def position(self) -> int:
        """The first offset that listeners have not heard of."""
        return self._order.position

    @property
    def waiting(self) -> int:
        """The number of waits and listeners."""
        return len(self._waits) + len(self._listeners)

    @property
    def is_heard(self) -> bool:
        """Return whether any listener is at the feed's position."""
        return bool(self._listeners)

    @property
    def lowest(self) -> int | None:
        """The lowest offset that a listener will hear or read next; None without listeners."""
        positions = [position for position in self._behind.values() if position is not None]
        if self._listeners:
            positions.append(self.position)
        return min(positions, default=None)

    async def wait(self, offset: int, timeout_ms: int | None = None, log_id: int = 0) -> bool:
        """Wait until a record exists at the offset; return False on a timeout.

        With `log_id`, the wait also ends once the name stands for another log.
        """
        try:
            return await self._waits.wait(offset, timeout_ms, log_id)
        finally:
            self._end_if_idle()

    def attach(self, listener: FeedListener) -> bool:
        """Attach a listener at its position; the first listener starts the feed.

        Returns False if the feed is past this position: the listener then reads up to `position`
        first, and attaches again without waiting in between.
        """
        if not self._listeners:
            self._restart(listener.position)
        elif listener.position < self.position:
            return False
        self._listeners = (*self._listeners, listener)
        self._look_soon()
        return True

    def detach(self, listener: FeedListener) -> None:
        """Detach a listener, if attached."""
        self._listeners = tuple(
            attached for attached in self._listeners if attached is not listener
        )
        self._end_if_idle()

    def hold(self) -> None:
        """Keep the feed, also without listeners, until `release`."""
        self._holds += 1

    def release(self) -> None:
        """Release a hold."""
        self._holds -= 1
        self._end_if_idle()

    @contextmanager
    def reading(self, number: int, position: int) -> Iterator[None]:
        """Keep the feed, and count a reader in `lowest`, while the reader catches up."""
        self._behind[number] = position
        try:
            yield
        finally:
            self._behind.pop(number, None)
            self._end_if_idle()

    def move(self, number: int, position: int) -> int:
        """Record a reader's position, and return it."""
        self._behind[number] = position
        return position

    def rest(self, number: int) -> None:
        """Record that a reader is paused, so that no record is kept for it."""
        self._behind[number] = None

    async def read(self, start: int, stop: int) -> Delivery | Missing:
        """Return records from `start` on, up to `stop`, at least one: cached or fetched."""
        cached = self._recent.find(start, stop)
        return cached if cached is not None else await self._find(start, stop)

    async def _find(self, start: int, stop: int) -> Delivery | Missing:
        """Return records from memory, which needs no thread, or fetch them."""
        store = self._source.store
        stop = min(stop, start + self.fetch_records_max)
        recalled = recall(store, self.log, start, stop)
        if recalled is not None:
            return recalled
        return await self._source.ask(fetch, store, self.log, start, stop)

    def begin_send(self) -> None:
        """Note that a commit of this process is under way, whose records will be offered."""
        self._sending += 1

    def end_send(self) -> None:
        """Note that this commit has ended, with or without success."""
        self._sending -= 1
        if self._deferred and not self._sending:
            self._deferred = False
            self._news.set()
        self._end_if_idle()

    def offer(self, first: int, records: Sequence[Record]) -> None:
        """Deliver committed records in offset order, without fetching them.

        All offers in a turn of the event loop are delivered together, at its end.
        """
        if not self._listeners:
            return
        if not self._offered:
            asyncio.get_running_loop().call_soon(self._take_offers)
        self._offered.append((first, records))

    def _take_offers(self) -> None:
        offered, self._offered = self._offered, []
        self._deliver([record for piece in offered for record in self._order.take(*piece)])
        if self._order.has_hole:
            self._look_soon()

    def _look_soon(self) -> None:
        """Look at the store soon, including commits of other processes."""
        self._is_fresh = False
        self._news.set()
        self._source.store.watch.stir()  # so that further waiting callers notice
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
        """Note that the log may have changed; from any thread."""
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
        source, before = self._source, self._extent
        extent = self._glance() if self._is_fresh else None
        self._is_fresh = True
        if extent is None:
            known_id = 0 if before is None else before.id
            began_s = source.clock.seconds()
            extent = await source.ask(look_at, source.store, self.log, known_id)
            self.counts.looks += 1
            self.counts.look_s += source.clock.seconds() - began_s
        key = watched_key(self.log, extent)
        if key != self._watched:
            self._watch(key)
            self._look_soon()  # a change before the watch began woke no listener
        self._extent = extent
        self._waits.settle(extent.end, extent.id)
        if self._listeners:
            self._go_back(before, extent)
            await self._catch_up(extent)

    def _glance(self) -> Extent | None:
        """Return the extent that the store shows without a lock; None if the extent may be
        incomplete."""
        views, before = self._source.store.views, self._extent
        log_id = views.get(keys.log_name(self.log))
        if not log_id or before is None or before.id != log_id:
            return None
        bounds: Bounds | None = views.get(keys.head(log_id))
        return None if bounds is None else Extent(bounds.start, bounds.end, log_id)

    async def _pause_after(self, error: Exception) -> None:
        self.counts.failures += 1
        if not isinstance(error, MillstreamError):
            _logger.exception("feed_failed", extra={"log": self.log}, exc_info=error)
        if not self._listeners:
            return
        self._error_s = min(RETRY_S_MAX, self._error_s * 2) or RETRY_S_MIN
        await asyncio.sleep(self._error_s)
        self._news.set()

    def _go_back(self, before: Extent | None, extent: Extent) -> None:
        """Restart at a lower position, if the name stands for another log."""
        if before is None or extent.id == before.id:
            return
        position = extent.position_of(self.position)
        if extent.equal_below is None and position > extent.end:
            position = extent.start
        if position >= self.position:
            return
        self._restart(position)
        for listener in self._listeners:
            listener.position = min(listener.position, position)
            self._tell(listener.restart)

    def _restart(self, position: int) -> None:
        self._order.restart(position)
        self._recent.clear()

    async def _catch_up(self, extent: Extent) -> None:
        """Fetch and deliver up to the observed end."""
        self._take_offers()
        if self._sending and not self._order.has_hole:
            self._deferred = True  # the records of the commit under way will be offered
            return
        if self.gather_s and extent.end > self.position:
            await asyncio.sleep(self.gather_s)
        while self._listeners and (position := self.position) < extent.end:
            if position < extent.start:
                self._miss(Missing(position, extent.start, "expired"))
                continue
            piece = await self._find(position, extent.end)
            if isinstance(piece, Missing):
                self._miss(piece)
            else:
                self._deliver(self._order.take(piece.first, piece.records))

    def _deliver(self, records: list[Record]) -> None:
        """Deliver records that end at the feed's position to every listener."""
        if not records:
            return
        delivery = Delivery(self.position - len(records), records)
        self._recent.add(delivery)
        first, stop = delivery.first, delivery.stop
        for listener in self._listeners:
            position = listener.position
            if position >= stop:
                continue
            later = delivery if position == first else delivery.since(position)
            listener.position = stop
            self._tell(listener.deliver, later)

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
        """Call a listener; its failure does not affect other listeners."""
        try:
            method(*arguments)
        except Exception:
            self.counts.failures += 1
            _logger.exception("listener_failed", extra={"log": self.log})
