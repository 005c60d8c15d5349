"""The live view: samples of the server and its store, once per second, for all watchers.

One collector per process takes the samples for all watchers. It runs while a client watches and for
some minutes after. The samples of these minutes are kept, so that a chart is not empty when it is
opened. The collector does not wait for a slow watcher, which gets the kept samples later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from millstream.clock import Clock
from millstream.embedded.status import CommitTimes, Flow, Pulse, age_s, flow_between
from millstream.embedded.totals import Tally, Totals
from millstream.errors import MillstreamError
from millstream.record import Status
from millstream.server.observe.health import Checkup
from millstream.server.observe.meter import Meter
from millstream.server.processes.figures import ProcessFigures, sum_commits
from millstream.store.store import Store

TICK_S = 1.0
KEPT = 300
"""Samples that are kept; also the ticks for which the collector runs without watchers."""

SILENCE_S = 10.0
"""The interval of silence after which a watcher gets a heartbeat."""

COMMITS_OVER = 10
"""Ticks over which commit times are aggregated: a single tick may have few commits."""

HEARTBEAT = b": still here\n\n"

_encode = msgspec.json.Encoder().encode


class Moment(Struct, frozen=True):
    """A sample and its event, encoded once for all watchers."""

    figures: Pulse
    event: bytes


CommitCounts = list[tuple[float, int]]
"""Bounds in seconds, and how many commits took at most that long."""


class Live:
    """The collector of one server. Belongs to the server's event loop."""

    def __init__(
        self,
        store: Store,
        meter: Meter,
        checkup: Checkup,
        closing: asyncio.Event,
        processes: Callable[[], list[ProcessFigures]] | None = None,
    ) -> None:
        """`processes` returns the figures of all processes of a group of servers."""
        self._store = store
        self._meter = meter
        self._checkup = checkup
        self._closing = closing
        self._processes = processes
        self._kept: deque[Moment] = deque(maxlen=KEPT)
        self._commits: deque[CommitCounts] = deque(maxlen=COMMITS_OVER + 1)
        self._news = asyncio.Event()
        """Set, and replaced by a new event, at every sample."""
        self.watchers = 0
        """How many clients watch now."""
        self.collecting: asyncio.Task[None] | None = None
        """The collector's task; None before the first watcher."""
        self.tick_s = TICK_S

    def history(self) -> list[Pulse]:
        """Return the samples of the last minutes, oldest first."""
        self._forget_old()
        return [moment.figures for moment in self._kept]

    async def watch(self, after_ms: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events: the kept samples after a time, then new samples, with
        heartbeats.

        The stream ends when the server stops.
        """
        self._begin()
        self.watchers += 1
        try:
            self._forget_old()
            while not self._closing.is_set():
                news = self._news
                if unseen := [moment for moment in self._kept if moment.figures.time > after_ms]:
                    after_ms = unseen[-1].figures.time
                    yield b"".join(moment.event for moment in unseen)
                elif not await self._hears(news):
                    yield HEARTBEAT
        finally:
            self.watchers -= 1

    async def close(self) -> None:
        """Stop the collector."""
        if self.collecting is not None:
            self.collecting.cancel()
            await asyncio.gather(self.collecting, return_exceptions=True)

    async def _hears(self, news: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(SILENCE_S):
                await news.wait()
        except TimeoutError:
            return False
        return True

    def _forget_old(self) -> None:
        """Drop samples that are too old: the collector may have paused."""
        oldest_ms = self._store.clock.wall_ms() - KEPT * TICK_S * 1000
        while self._kept and self._kept[0].figures.time < oldest_ms:
            self._kept.popleft()

    # The collector.

    def _begin(self) -> None:
        if self.collecting is None or self.collecting.done():
            self.collecting = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        """Take a sample at every tick, until no client has watched for `KEPT` ticks."""
        loop, tally = asyncio.get_running_loop(), Tally(self._store)
        self._commits.clear()
        before, before_s = Totals(), loop.time()
        due_s, alone = before_s, 0
        try:
            while alone < KEPT and not self._closing.is_set():
                alone = 0 if self.watchers else alone + 1
                after, status = await self._look(tally, before)
                now_s = loop.time()
                self._commits.append(self._commit_counts())
                self._tell(flow_between(before, after, now_s - before_s), after, status)
                before, before_s = after, now_s
                due_s = max(due_s + self.tick_s, now_s)
                await asyncio.sleep(due_s - now_s)
        finally:
            tally.close()
            self._wake()

    async def _look(self, tally: Tally, before: Totals) -> tuple[Totals, Status]:
        """Return the store's totals and status; the last totals and "critical" if the store
        fails."""
        try:
            totals = await asyncio.to_thread(tally.look)
        except (MillstreamError, OSError):
            return before, "critical"
        return totals, (await self._checkup.health()).status

    def _tell(self, rates: Flow, totals: Totals, status: Status) -> None:
        clock: Clock = self._store.clock
        now_ms = clock.wall_ms()
        if self._kept:  # times must rise, even if the clock was set back: they are event ids
            now_ms = max(now_ms, self._kept[-1].figures.time + 1)
        figures = Pulse(
            time=now_ms,
            rates=rates,
            depth=totals.depth,
            oldest_age_s=age_s(totals, now_ms),
            commit_ms=commit_times(self._commits[0], self._commits[-1]),
            logs=totals.logs,
            queues=totals.queues,
            rooms=totals.rooms,
            connections=self._connections_open(),
            health=status,
        )
        self._kept.append(Moment(figures, event_of(figures)))
        self._wake()

    def _commit_counts(self) -> CommitCounts:
        if self._processes is None:
            return self._meter.commit_counts()
        return sum_commits(self._processes())

    def _connections_open(self) -> int:
        if self._processes is None:
            return self._meter.connections_open()
        return sum(row.connections for row in self._processes())

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def event_of(figures: Pulse) -> bytes:
    """Encode a sample as a server-sent event; the id is the sample's time, from which a client
    resumes."""
    return b"id: %d\ndata: %s\n\n" % (figures.time, _encode(figures))


def commit_times(before: CommitCounts, after: CommitCounts) -> CommitTimes:
    """Return the median and the 99th percentile of the commits between two counts, in ms."""
    bounds = [bound for bound, _ in after]
    # A process of a group that was restarted counts from 0 again.
    counts = [max(0, late - early) for (_, late), (_, early) in zip(after, before, strict=True)]
    if not counts[-1]:
        return CommitTimes()
    shares = (0.5, 0.99)
    return CommitTimes(*(round(1000 * _quantile(bounds, counts, share), 3) for share in shares))


def _quantile(bounds: Sequence[float], counts: Iterable[int], share: float) -> float:
    """Return the value below which a share of all values lies; counts are cumulative.

    Values are assumed to be spread evenly within a bucket.
    """
    cumulative = list(counts)
    rank = share * cumulative[-1]
    below, low = 0, 0.0
    for bound, count in zip(bounds, cumulative, strict=True):
        if count >= rank:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / max(1, count - below)
        below, low = count, bound
    return low
