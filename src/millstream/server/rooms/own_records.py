"""Which records of rooms this process has stored, whichever way: for a server that relays no others.

It is noted inside the commit, before the commit is durable, so that no reader of the log can be ahead
of it. What was there before a room had its first listener here counts as stored here as well.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from millstream.format import keys
from millstream.log.model.head import Head, RecordsAppended
from millstream.store.state.delta import Delta
from millstream.store.store import Store

RANGES_MAX = 10_000
"""Stretches of one room's log that are remembered; what is before them counts as stored here."""


class OwnOffsets:
    """The offsets of one log that this process has filled, as stretches in order; pure."""

    def __init__(self) -> None:
        self.since: int | None = None
        """What is below counts as well."""
        self._ranges: list[tuple[int, int]] = []

    def __contains__(self, offset: int) -> bool:
        if self.since is not None and offset < self.since:
            return True
        ranges = self._ranges
        at = bisect_right(ranges, (offset, 2**63)) - 1
        return at >= 0 and offset < ranges[at][1]

    def note(self, start: int, stop: int) -> None:
        """Add a stretch that lies behind all others; readers may look meanwhile."""
        ranges = self._ranges
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((start, stop))
        if len(ranges) > RANGES_MAX:
            half = RANGES_MAX // 2
            self.since = max(self.since or 0, ranges[half - 1][1])
            self._ranges = ranges[half:]


class OwnRecords:
    """The same for the rooms that have listeners here; noted on any thread, asked in the loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._logs: set[str] = set()
        self._found: dict[bytes, OwnOffsets] = {}
        """By the key of the log's head: a log that is made again is another one."""
        store.on_own = self._note

    def follow(self, log: str) -> None:
        """Note what is stored in a log from now on."""
        self._logs.add(log)

    def unfollow(self, log: str) -> None:
        """Forget a log."""
        self._logs.discard(log)
        self._found = {key: one for key, one in self._found.items() if self._name(key) != log}

    def begin(self, log: str, end: int) -> None:
        """The log ended here when it was first looked at, after `follow`: what was before counts."""
        key = self._key(log)
        if key is not None:
            found = self._found.setdefault(key, OwnOffsets())
            if found.since is None:
                found.since = end

    def has(self, log: str, offset: int) -> bool:
        """Whether this process has stored what is at an offset."""
        found = self._found.get(self._key(log) or b"")
        return found is not None and offset in found

    def _key(self, log: str) -> bytes | None:
        log_id = self._store.views.get(keys.log_name(log))
        return keys.head(log_id) if log_id else None

    def _name(self, key: bytes) -> str:
        bounds = self._store.views.get(key)
        return "" if bounds is None else str(bounds.name)

    def _note(self, delta: Delta[Any]) -> None:
        """Note what a commit appends; called under the store's mutex."""
        counts: dict[bytes, int] = {}
        for key, change in delta.changes:
            if type(change) is RecordsAppended:
                counts[key] = counts.get(key, 0) + change.count
        for key, count in counts.items():
            head = self._store.state.entities.get(key)
            if isinstance(head, Head) and head.name in self._logs:
                found = self._found.setdefault(key, OwnOffsets())
                found.note(head.end - count, head.end)
