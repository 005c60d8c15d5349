"""The live view: how a server and its store stand, once per second, for every watcher.

One collector per process makes the figures, however many watch, and only while one does or did so
within the last minutes. What it has made is kept for those minutes: a chart is not empty
when it is opened. A watcher that falls behind is not waited for; it gets what is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence

import msgspec
from msgspec import Struct

from millstream.clock import Clock
from millstream.embedded.status import CommitTimes, Flow, Pulse, age_s, flow_between
from millstream.embedded.totals import Tally, Totals
from millstream.errors import MillstreamError
from millstream.record import Status
from millstream.server.observe.health import Checkup
from millstream.server.observe.meter import Meter
from millstream.store.store import Store

TICK_S = 1.0
KEPT = 300
"""Pulse that are kept, and for how many ticks the collector goes on once nobody watches."""

SILENCE_S = 10.0
"""After so long without figures a watcher is told that the server is there."""

COMMITS_OVER = 10
"""Ticks over which the times of commits are taken together: in one there may be few."""

HEARTBEAT = b": still here\n\n"

_encode = msgspec.json.Encoder().encode


class Moment(Struct, frozen=True):
    """Pulse, and the event that tells them: encoded once for all watchers."""

    figures: Pulse
    event: bytes


CommitCounts = list[tuple[float, int]]
"""Bounds in seconds, and how many commits took no longer."""


class Live:
    """The collector of one server; belongs to its event loop."""

    def __init__(
        self, store: Store, meter: Meter, checkup: Checkup, closing: asyncio.Event
    ) -> None:
        self._store = store
        self._meter = meter
        self._checkup = checkup
        self._closing = closing
        self._kept: deque[Moment] = deque(maxlen=KEPT)
        self._commits: deque[CommitCounts] = deque(maxlen=COMMITS_OVER + 1)
        self._news = asyncio.Event()
        """Set, and replaced, when there are new figures."""
        self.watchers = 0
        """How many watch now."""
        self.collecting: asyncio.Task[None] | None = None
        """The collector, once a client has watched."""
        self.tick_s = TICK_S

    def history(self) -> list[Pulse]:
        """The figures of the last minutes, oldest first; none if nobody has watched."""
        self._forget_old()
        return [moment.figures for moment in self._kept]

    async def watch(self, after_ms: int = 0) -> AsyncGenerator[bytes, None]:
        """Events of server-sent events: what is kept behind a time, then what comes, with heartbeats.

        It ends when the server stops.
        """
        self._begin()
        self.watchers += 1
        try:
            self._forget_old()
            while not self._closing.is_set():
                news = self._news
                if unseen := [one for one in self._kept if one.figures.time > after_ms]:
                    after_ms = unseen[-1].figures.time
                    yield b"".join(one.event for one in unseen)
                elif not await self._hears(news):
                    yield HEARTBEAT
        finally:
            self.watchers -= 1

    async def close(self) -> None:
        """Collect no more."""
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
        """Forget what is older than the minutes that are kept, in which nobody may have watched."""
        oldest_ms = self._store.clock.wall_ms() - KEPT * TICK_S * 1000
        while self._kept and self._kept[0].figures.time < oldest_ms:
            self._kept.popleft()

    # The collector.

    def _begin(self) -> None:
        if self.collecting is None or self.collecting.done():
            self.collecting = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        """Make figures at every tick, until nobody has watched for as long as they are kept."""
        loop, tally = asyncio.get_running_loop(), Tally(self._store)
        self._commits.clear()
        before, before_s = Totals(), loop.time()
        due_s, alone = before_s, 0
        try:
            while alone < KEPT and not self._closing.is_set():
                alone = 0 if self.watchers else alone + 1
                after, status = await self._look(tally, before)
                now_s = loop.time()
                self._commits.append(self._meter.commit_counts())
                self._tell(flow_between(before, after, now_s - before_s), after, status)
                before, before_s = after, now_s
                due_s = max(due_s + self.tick_s, now_s)
                await asyncio.sleep(due_s - now_s)
        finally:
            tally.close()
            self._wake()

    async def _look(self, tally: Tally, before: Totals) -> tuple[Totals, Status]:
        """How the store stands; if it does not say, as it stood before, and that it is critical."""
        try:
            found = await asyncio.to_thread(tally.look)
        except (MillstreamError, OSError):
            return before, "critical"
        return found, (await self._checkup.health()).status

    def _tell(self, rates: Flow, totals: Totals, status: Status) -> None:
        clock: Clock = self._store.clock
        now_ms = clock.wall_ms()
        if self._kept:  # a clock that was set back does not hide what is new
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
            connections=self._meter.connections_open(),
            health=status,
        )
        self._kept.append(Moment(figures, event_of(figures)))
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def event_of(figures: Pulse) -> bytes:
    """An event of server-sent events; its id is its time, from which a client can go on."""
    return b"id: %d\ndata: %s\n\n" % (figures.time, _encode(figures))


def commit_times(before: CommitCounts, after: CommitCounts) -> CommitTimes:
    """The median and the 99th percentile of the commits between two counts, in milliseconds."""
    bounds = [bound for bound, _ in after]
    counts = [late - early for (_, late), (_, early) in zip(after, before, strict=True)]
    if not counts[-1]:
        return CommitTimes()
    return CommitTimes(*(round(1000 * _quantile(bounds, counts, one), 3) for one in (0.5, 0.99)))


def _quantile(bounds: Sequence[float], counts: Iterable[int], part: float) -> float:
    """Where a part of all lies below, as even as can be within a bucket; counts are cumulative."""
    counted = list(counts)
    wanted = part * counted[-1]
    below, low = 0, 0.0
    for bound, count in zip(bounds, counted, strict=True):
        if count >= wanted:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (wanted - below) / max(1, count - below)
        below, low = count, bound
    return low
