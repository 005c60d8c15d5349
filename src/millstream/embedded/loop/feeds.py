"""The feeds of a session: a feed for each log with listeners or waits."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.embedded.loop.feed import Feed, FeedCounts, FeedSource


class Feeds:
    """The feeds of a session, by log; unused feeds are dropped."""

    def __init__(self, source: FeedSource) -> None:
        self.counts = FeedCounts()
        self._source = source
        self._feeds: dict[str, Feed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def __iter__(self) -> Iterator[Feed]:
        return iter([*self._feeds.values()])

    def of(self, log: str) -> Feed:
        """Return the feed of a log; it lives while it has listeners or waits."""
        feed = self._feeds.get(log)
        if feed is None:
            feed = self._feeds[log] = Feed(self._source, log, self._forget, self.counts)
        return feed

    async def wait(self, log: str, offset: int, timeout_ms: int | None, log_id: int = 0) -> bool:
        """Wait until a record exists at the offset; return False on a timeout."""
        return await self.of(log).wait(offset, timeout_ms, log_id)

    def _forget(self, feed: Feed) -> None:
        if self._feeds.get(feed.log) is feed:
            del self._feeds[feed.log]
