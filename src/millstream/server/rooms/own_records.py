"""Own records: which records of rooms this process has stored, in any way.

A server that does not push records of other processes asks here. Offsets are noted inside the
commit, before the commit is durable, so that no reader of the log can be faster. Records that a
room had before its first listener entered count as own records.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from millstream.format import keys
from millstream.log.model.head import Head, RecordsAppended
from millstream.store.state.delta import Delta
from millstream.store.store import Store

RANGES_MAX = 10_000
"""Most ranges per log; all records below the kept ranges count as own records."""


class OwnOffsets:
    """The offsets of one log that this process has stored, as ordered ranges; pure."""

    def __init__(self) -> None:
        self.since: int | None = None
        """Offsets below `since` count as own offsets, too."""
        self._ranges: list[tuple[int, int]] = []

    def __contains__(self, offset: int) -> bool:
        if self.since is not None and offset < self.since:
            return True
        ranges = self._ranges
        index = bisect_right(ranges, (offset, 2**63)) - 1
        return index >= 0 and offset < ranges[index][1]

    def note(self, start: int, stop: int) -> None:
        """Add a range above the last range; the event loop may read at the same time."""
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
    """The own records of all rooms with listeners. Written on any thread, read in the event
    loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._logs: set[str] = set()
        self._offsets: dict[bytes, OwnOffsets] = {}
        """By the key of the log's head: a log that is created again has another key."""
        store.listeners.add(delta=self._note)

    def follow(self, log: str) -> None:
        """Start to note the records of a log."""
        self._logs.add(log)

    def unfollow(self, log: str) -> None:
        """Forget a log."""
        self._logs.discard(log)
        self._offsets = {
            key: offsets for key, offsets in self._offsets.items() if self._name(key) != log
        }

    def begin(self, log: str, end: int) -> None:
        """Count all records below `end` as own records; only the first call after `follow` does
        this."""
        key = self._key(log)
        if key is not None:
            offsets = self._offsets.setdefault(key, OwnOffsets())
            if offsets.since is None:
                offsets.since = end

    def has(self, log: str, offset: int) -> bool:
        """Whether this process has stored the record at an offset."""
        offsets = self._offsets.get(self._key(log) or b"")
        return offsets is not None and offset in offsets

    def _key(self, log: str) -> bytes | None:
        log_id = self._store.views.get(keys.log_name(log))
        return keys.head(log_id) if log_id else None

    def _name(self, key: bytes) -> str:
        bounds = self._store.views.get(key)
        return "" if bounds is None else str(bounds.name)

    def _note(self, delta: Delta[Any]) -> None:
        """Note the records that a commit appends. Called under the store's mutex."""
        counts: dict[bytes, int] = {}
        for key, change in delta.changes:
            if type(change) is RecordsAppended:
                counts[key] = counts.get(key, 0) + change.count
        for key, count in counts.items():
            head = self._store.state.entities.get(key)
            if isinstance(head, Head) and head.name in self._logs:
                offsets = self._offsets.setdefault(key, OwnOffsets())
                offsets.note(head.end - count, head.end)
