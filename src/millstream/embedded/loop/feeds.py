"""The feeds of a session: one for each log that callers follow, for as long as they do."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.embedded.loop.feed import Feed, FeedCounts, FeedSource


class Feeds:
    """The feeds of one session, by log; those that no caller needs are let go."""

    def __init__(self, source: FeedSource) -> None:
        self.counts = FeedCounts()
        self._source = source
        self._found: dict[str, Feed] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Feed]:
        return iter([*self._found.values()])

    def of(self, log: str) -> Feed:
        """The feed of a log; it lives while it has listeners or waits."""
        found = self._found.get(log)
        if found is None:
            found = self._found[log] = Feed(self._source, log, self._forget, self.counts)
        return found

    async def wait(
        self, log: str, offset: int, timeout_ms: int | None, setbacks: int | None = None
    ) -> bool:
        """Wait until there is a record at the offset; False if the time is up before."""
        return await self.of(log).wait(offset, timeout_ms, setbacks)

    def _forget(self, feed: Feed) -> None:
        if self._found.get(feed.log) is feed:
            del self._found[feed.log]
